"""An idempotent producer over several partitions, with sequences, pipelining and retries as in
Kafka's clients.

A partition has up to `WINDOW` batches in flight. After a failure the producer waits until no batch is in
flight and sends all unacknowledged batches again in order. After a change of the leader, it sends to the new
leader when the batches at the old leader are answered or given up.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ponor_kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ponor_kafka.record_builder import build_batch
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.cluster.sim_cluster import KAFKA_ADDRESS
from ponor_cluster_simulation.workload.history import ClusterHistory, Value
from ponor_cluster_simulation.workload.kafka_client import KafkaClient
from ponor_cluster_simulation.workload.leaders import Leaders

WINDOW: Final = 4
"""One less than the batches that a broker remembers.

Otherwise newer acknowledged batches may displace an unanswered batch from the broker's memory.
"""
REQUEST_TIMEOUT_S: Final = 4.0
VERSIONS: Final = (7, 9, 11)
"""Produce versions. An error answer of the newest version contains the new leader."""
RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Values of one partition with consecutive numbers."""

    first: Value
    sizes_bytes: tuple[int, ...]

    def encode(self, producer_id: int, timestamp_ms: int) -> bytes:
        """The record batch; equal in every call, except for the timestamp."""
        records = [
            (
                timestamp_ms,
                None,
                Value(self.first.producer, self.first.partition, self.first.number + index).encode(size),
            )
            for index, size in enumerate(self.sizes_bytes)
        ]
        return bytes(
            build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=self.first.number)
        )


@dataclass(slots=True)
class Lane:
    """The batches of one partition: the first `under_way` of `unacknowledged` are in flight to one `node`."""

    partition: int
    node: int = -1
    next_number: int = 0
    unacknowledged: deque[Batch] = field(default_factory=deque)
    under_way: int = 0
    answers_due: int = 0
    is_failed: bool = False
    unsure_end: int = 0
    """Values with lower numbers may be in the log: they were sent, and timed out or had no answer.

    The broker may therefore acknowledge later batches before it acknowledges these values.
    """

    def may_send(self, leader: int | None) -> bool:
        """Whether the next batch may be sent to the known leader."""
        if self.is_failed and self.answers_due == 0:
            self.is_failed = False
            self.under_way = 0
        if leader is None or (leader != self.node and self.under_way > 0):
            return False
        return not self.is_failed and self.under_way < min(WINDOW, len(self.unacknowledged))

    def broken(self) -> None:
        """The connection has closed: no batch is in flight, and the broker may have stored any of them."""
        self.doubt(self.under_way)
        self.under_way = self.answers_due = 0
        self.is_failed = False

    def doubt(self, count: int) -> None:
        """Mark the first `count` batches as possibly stored."""
        if count:
            last = self.unacknowledged[count - 1]
            self.unsure_end = max(self.unsure_end, last.first.number + len(last.sizes_bytes))

    def is_in_doubt(self, batch: Batch) -> bool:
        """Whether a batch may be in the log without an acknowledgement."""
        return batch.first.number < self.unsure_end

    def may_precede(self, batch: Batch) -> bool:
        """Whether a batch may be acknowledged now: every batch before it is, or may be, in the log."""
        before = itertools.takewhile(lambda each: each is not batch, self.unacknowledged)
        return all(self.is_in_doubt(each) for each in before)


class Producer:
    """One producer. Its process never crashes, so its history is complete."""

    def __init__(
        self,
        name: str,
        topic: str,
        partitions: int,
        history: ClusterHistory,
        *,
        bootstrap: Sequence[str] = (KAFKA_ADDRESS,),
        pause_s_max: float = 0.02,
    ) -> None:
        self.name = name
        self._topic = topic
        self._pause_s_max = pause_s_max
        self._lanes = [Lane(partition) for partition in range(partitions)]
        self._history = history
        self.leaders = Leaders(name, topic, bootstrap)
        self._producer_id = -1
        self.repeats = 0
        self.stop = False
        """Start no new batch, and finish the started ones."""

    @property
    def is_finished(self) -> bool:
        """Whether every started batch is acknowledged."""
        return self.stop and not any(lane.unacknowledged for lane in self._lanes)

    async def run(self, runtime: Runtime) -> None:
        """Produce until stopped and finished."""
        talking: dict[int, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.leaders.renew(runtime, lambda: self.is_finished))
            while self._producer_id < 0:
                await self._take_id(runtime)
            while not self.is_finished:
                if not self.stop:
                    self._begin_batches(runtime)
                for node in self.leaders.addresses:
                    if node not in talking:
                        talking[node] = tasks.create_task(self._talk(runtime, node))
                await runtime.clock.sleep(runtime.randomness.uniform(0.001, self._pause_s_max))

    async def _talk(self, runtime: Runtime, node: int) -> None:
        """Send the batches of the partitions that one broker leads, over any number of connections."""
        while not self.is_finished:
            if not any(self._is_for(lane, node) for lane in self._lanes):
                await runtime.clock.sleep(runtime.randomness.uniform(0.01, self._pause_s_max))
                continue
            try:
                client = await KafkaClient.connect(runtime, self.leaders.addresses[node], self.name)
            except ConnectionClosedError:
                self.leaders.doubt()
                await runtime.clock.sleep(runtime.randomness.uniform(0.01, 0.1))
                continue
            try:
                await self._converse(runtime, client, node)
            except* ConnectionClosedError:
                self.leaders.doubt()
            finally:
                await client.close()
                for lane in self._lanes:
                    if lane.node == node:
                        self.repeats += lane.under_way
                        lane.broken()

    async def _converse(self, runtime: Runtime, client: KafkaClient, node: int) -> None:
        async with asyncio.TaskGroup() as requests:
            while not self.is_finished:
                chosen = [
                    lane for lane in self._lanes if self._is_for(lane, node) and runtime.randomness.below(3)
                ]
                if chosen:
                    requests.create_task(self._send(runtime, client, node, chosen))
                await runtime.clock.sleep(runtime.randomness.uniform(0.001, self._pause_s_max))

    def _is_for(self, lane: Lane, node: int) -> bool:
        leader = self.leaders.leader_of(lane.partition)
        return leader == node and lane.may_send(leader)

    async def _take_id(self, runtime: Runtime) -> None:
        """Get a producer id from any broker."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        try:
            address = self.leaders.any_address(runtime.randomness.below(1 << 16))
            async with KafkaClient.connected(runtime, address, self.name) as client:
                answer = await client.ask(request, 4, InitProducerIdResponse, timeout_s=REQUEST_TIMEOUT_S)
        except ConnectionClosedError:
            await runtime.clock.sleep(runtime.randomness.uniform(0.01, 0.1))
            return
        if answer.error_code == ErrorCode.NONE:
            self._producer_id = answer.producer_id
        else:
            assert answer.error_code in RETRIABLE, ErrorCode(answer.error_code)

    def _begin_batches(self, runtime: Runtime) -> None:
        randomness = runtime.randomness
        for lane in self._lanes:
            if len(lane.unacknowledged) < WINDOW and randomness.below(3) == 0:
                count = randomness.below(3) + 1
                sizes = tuple((40, 40, 300, 1_500)[randomness.below(4)] for _ in range(count))
                lane.unacknowledged.append(Batch(Value(self.name, lane.partition, lane.next_number), sizes))
                lane.next_number += count
                self._history.sent[(self.name, lane.partition)] = lane.next_number

    async def _send(self, runtime: Runtime, client: KafkaClient, node: int, lanes: list[Lane]) -> None:
        batches = [lane.unacknowledged[lane.under_way] for lane in lanes]
        now_ms = runtime.clock.wall_ms()
        data = [
            PartitionProduceData(lane.partition, memoryview(batch.encode(self._producer_id, now_ms)))
            for lane, batch in zip(lanes, batches, strict=True)
        ]
        for lane in lanes:
            lane.node = node
            lane.under_way += 1
            lane.answers_due += 1
        request = ProduceRequest(
            acks=-1, timeout_ms=2_000, topic_data=[TopicProduceData(self._topic, partition_data=data)]
        )
        version = VERSIONS[runtime.randomness.below(len(VERSIONS))]

        def arrived(response: ProduceResponse) -> None:
            rows = [row for topic in response.responses for row in topic.partition_responses]
            for lane, batch, row in zip(lanes, batches, rows, strict=True):
                assert row.index == lane.partition
                lane.answers_due -= 1
                self._answered(lane, batch, row)
                if row.error_code != ErrorCode.NONE:
                    self.leaders.hint(lane.partition, row.current_leader, response.node_endpoints)

        await client.ask(request, version, ProduceResponse, timeout_s=REQUEST_TIMEOUT_S, arrived=arrived)

    def _answered(self, lane: Lane, batch: Batch, row: PartitionProduceResponse) -> None:
        is_first = lane.unacknowledged[0] is batch
        code = ErrorCode(row.error_code)
        if code is ErrorCode.NONE:
            assert lane.may_precede(batch), (
                f"the broker accepted {batch.first} before {lane.unacknowledged[0].first}"
            )
            self._acknowledged(lane, batch, row.base_offset)
            return
        if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and lane.is_in_doubt(batch):
            # The batch is stored, but older than the batches that the broker remembers. Kafka's clients treat
            # this error as an acknowledgement.
            self._acknowledged(lane, batch, None)
            return
        follows_a_failure = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_first
        assert code in RETRIABLE or follows_a_failure, f"{batch.first}: {code.name} {row.error_message}"
        self.repeats += 1
        lane.is_failed = True
        if code is ErrorCode.REQUEST_TIMED_OUT:
            lane.doubt(lane.under_way)

    def _acknowledged(self, lane: Lane, batch: Batch, base_offset: int | None) -> None:
        lane.unacknowledged.remove(batch)
        lane.under_way -= 1
        self._history.acknowledge(batch.first, len(batch.sizes_bytes), base_offset)
