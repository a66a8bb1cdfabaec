"""An idempotent producer as clients are: batches with sequences, several under way, and the same batches again until they are acknowledged.

What lives here: one producer over several partitions and its patience. A partition has one batch under way until the broker knows the producer, then up to
`WINDOW`; after any failure everything that is not acknowledged is sent again, in order, once nothing of it is under way.
"""

from __future__ import annotations

import asyncio
from collections import deque
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

from ponor_simulation.cluster import KAFKA_ADDRESS
from ponor_simulation.kafka_client import KafkaClient
from ponor_simulation.workload.history import ClusterHistory, Value

WINDOW: Final = 4
"""One less than a broker remembers: a repeated batch is always known."""
REQUEST_TIMEOUT_S: Final = 4.0
VERSIONS: Final = (7, 9, 11)
RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Values of one partition with consecutive numbers."""

    first: Value
    sizes_bytes: tuple[int, ...]

    def encode(self, producer_id: int, timestamp_ms: int) -> bytes:
        """The record batch; the same bytes every time, but for the time."""
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
    """The way of one partition's batches: `unacknowledged`, of which the first `under_way` are sent."""

    partition: int
    next_number: int = 0
    is_known: bool = False
    unacknowledged: deque[Batch] = field(default_factory=deque)
    under_way: int = 0
    answers_due: int = 0
    is_failed: bool = False
    is_timed_out: bool = False
    """A batch was answered "timed out": the broker has it all the same, so that those behind it may be acknowledged before it is."""

    @property
    def may_send(self) -> bool:
        """Whether the next batch may leave."""
        if self.is_failed and self.answers_due == 0:
            self.is_failed = self.is_timed_out = False
            self.under_way = 0
        window = WINDOW if self.is_known else 1
        return not self.is_failed and self.under_way < min(window, len(self.unacknowledged))

    def broken(self) -> None:
        """The connection is gone: nothing is under way any more, whatever the broker has of it."""
        self.under_way = self.answers_due = 0
        self.is_failed = self.is_timed_out = False


class Producer:
    """See the module's docstring. Its process never dies: it is the witness."""

    def __init__(
        self, name: str, topic: str, partitions: int, history: ClusterHistory, *, pause_s_max: float = 0.02
    ) -> None:
        self.name = name
        self._topic = topic
        self._pause_s_max = pause_s_max
        self._lanes = [Lane(partition) for partition in range(partitions)]
        self._history = history
        self._producer_id = -1
        self.repeats = 0
        self.stop = False
        """Nothing new is begun; what was begun is finished."""

    @property
    def is_finished(self) -> bool:
        """Whether everything that was begun is acknowledged."""
        return self.stop and not any(lane.unacknowledged for lane in self._lanes)

    async def run(self, runtime: Runtime) -> None:
        """Produce until stopped and finished."""
        while not self.is_finished:
            try:
                client = await KafkaClient.connect(runtime, KAFKA_ADDRESS, self.name)
            except ConnectionClosedError:
                await runtime.clock.sleep(runtime.randomness.uniform(0.01, 0.1))
                continue
            try:
                await self._converse(runtime, client)
            except* ConnectionClosedError:
                pass
            finally:
                await client.close()
                for lane in self._lanes:
                    self.repeats += lane.under_way
                    lane.broken()

    async def _converse(self, runtime: Runtime, client: KafkaClient) -> None:
        async with asyncio.TaskGroup() as requests:
            while self._producer_id < 0:
                await self._take_id(client)
            while not self.is_finished:
                if not self.stop:
                    self._begin_batches(runtime)
                chosen = [lane for lane in self._lanes if lane.may_send and runtime.randomness.below(3)]
                if chosen:
                    requests.create_task(self._send(runtime, client, chosen))
                await runtime.clock.sleep(runtime.randomness.uniform(0.001, self._pause_s_max))

    async def _take_id(self, client: KafkaClient) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = await client.ask(request, 4, InitProducerIdResponse, timeout_s=REQUEST_TIMEOUT_S)
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

    async def _send(self, runtime: Runtime, client: KafkaClient, lanes: list[Lane]) -> None:
        batches = [lane.unacknowledged[lane.under_way] for lane in lanes]
        now_ms = runtime.clock.wall_ms()
        data = [
            PartitionProduceData(lane.partition, memoryview(batch.encode(self._producer_id, now_ms)))
            for lane, batch in zip(lanes, batches, strict=True)
        ]
        for lane in lanes:
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

        await client.ask(request, version, ProduceResponse, timeout_s=REQUEST_TIMEOUT_S, arrived=arrived)

    def _answered(self, lane: Lane, batch: Batch, row: PartitionProduceResponse) -> None:
        is_first = lane.unacknowledged[0] is batch
        if row.error_code == ErrorCode.NONE:
            assert is_first or lane.is_timed_out, (
                f"{batch.first} was taken before {lane.unacknowledged[0].first}"
            )
            lane.unacknowledged.remove(batch)
            lane.under_way -= 1
            lane.is_known = True
            self._history.acknowledge(batch.first, len(batch.sizes_bytes), row.base_offset)
            return
        code = ErrorCode(row.error_code)
        follows_a_failure = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_first
        assert code in RETRIABLE or follows_a_failure, f"{batch.first}: {code.name} {row.error_message}"
        self.repeats += 1
        lane.is_failed = True
        lane.is_timed_out = lane.is_timed_out or code is ErrorCode.REQUEST_TIMED_OUT
