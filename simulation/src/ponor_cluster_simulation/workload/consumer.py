"""A consumer that checks every answer: it follows each partition from leader to leader and sometimes seeks
back.

It compares every record with what any consumer has read. It has one conversation per broker, and
fetches a partition in one conversation at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ponor_kafka.messages.fetch import PartitionData as FetchedPartition
from ponor_kafka.record_batch import split_batches
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.cluster.sim_cluster import KAFKA_ADDRESS
from ponor_cluster_simulation.workload.history import ClusterHistory, Value
from ponor_cluster_simulation.workload.kafka_client import KafkaClient
from ponor_cluster_simulation.workload.leaders import Leaders

VERSIONS: Final = (4, 11, 12, 16)
"""Fetch versions. From 12 on an answer contains the new leader, from 16 on also the leader's address."""
SESSION_VERSIONS: Final = {False: (11, 12), True: (16,)}
"""Fetch versions that continue a session, by whether the session uses topic ids, because a session cannot
switch between ids and names.
"""
TOPIC_ID_MIN: Final = 13
SESSION_LOST: Final = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})
"""The broker restarted, or an answer was lost with its connection. The next fetch must be a full one."""
REQUEST_TIMEOUT_S: Final = 6.0
RECORD_BYTES_MAX: Final = 1 << 20
RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


@dataclass(slots=True)
class _Conversation:
    """The fetch session with one broker.

    Attributes:
        uses_ids: the session uses topic ids instead of names.
        sent: what the broker remembers of the session: partition to offset and leader epoch.
    """

    node: int
    session_id: int = 0
    session_epoch: int = -1
    uses_ids: bool = False
    sent: dict[int, tuple[int, int]] = field(default_factory=dict)

    def begin(self, version: int, *, with_session: bool) -> None:
        """Drop the session, and start a new one if `with_session` is true."""
        self.session_id = 0
        self.session_epoch = 0 if with_session else -1
        self.uses_ids = version >= TOPIC_ID_MIN
        self.sent = {}


class Consumer:
    """One consumer. Its process never crashes.

    Attributes:
        logs: the values read, by partition, from offset 0 to the position.
        high_watermarks: the highest high watermark received, by partition; a lower one is a violation.
        looks: number of high watermarks received.
    """

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
        self._pause_s_max = pause_s_max
        self._topic = topic
        self._history = history
        self.leaders = Leaders(name, topic, bootstrap)
        self.logs: list[list[Value]] = [[] for _ in range(partitions)]
        self.high_watermarks = [-1] * partitions
        self.errors = 0
        self.looks = 0
        self.stop = False
        self._asked: dict[int, int] = {}
        """Partitions in an unanswered fetch."""

    async def run(self, runtime: Runtime) -> None:
        """Read until stopped."""
        talking: dict[int, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.leaders.renew(runtime, lambda: self.stop))
            while not self.stop:
                for node in self.leaders.addresses:
                    if node not in talking:
                        talking[node] = tasks.create_task(self._talk(runtime, node))
                await runtime.clock.sleep(runtime.randomness.uniform(0.01, 0.05))

    @property
    def is_at_end(self) -> bool:
        """Whether the consumer has read up to all high watermarks."""
        return self._is_told and list(map(len, self.logs)) == self.high_watermarks

    @property
    def _is_told(self) -> bool:
        return all(end >= 0 for end in self.high_watermarks)

    async def _talk(self, runtime: Runtime, node: int) -> None:
        """Fetch the partitions that one broker leads, over any number of connections."""
        while not self.stop:
            if not self._led_by(node):
                await runtime.clock.sleep(runtime.randomness.uniform(0.01, 0.05))
                continue
            try:
                client = await KafkaClient.connect(runtime, self.leaders.addresses[node], self.name)
            except ConnectionClosedError:
                self.leaders.doubt()
                await runtime.clock.sleep(runtime.randomness.uniform(0.01, 0.1))
                continue
            conversation = _Conversation(node)
            try:
                while not self.stop:
                    await self._fetch(runtime, client, conversation)
            except ConnectionClosedError:
                self.leaders.doubt()
            finally:
                await client.close()

    def _led_by(self, node: int) -> list[int]:
        """Partitions to fetch from a broker: it leads them, and no unanswered fetch contains them."""
        return [
            partition
            for partition in range(len(self.logs))
            if partition not in self._asked and self.leaders.leader_of(partition) == node
        ]

    async def _fetch(self, runtime: Runtime, client: KafkaClient, conversation: _Conversation) -> None:
        randomness = runtime.randomness
        partitions = self._led_by(conversation.node)
        if not partitions:
            await runtime.clock.sleep(randomness.uniform(0.01, 0.05))
            return
        if randomness.below(60) == 0:
            log = self.logs[partitions[randomness.below(len(partitions))]]
            del log[randomness.below(len(log) + 1) :]
        asked = {partition: len(self.logs[partition]) for partition in partitions}
        self._asked.update(asked)
        try:
            request, version = self._request(runtime, conversation, asked)
            response = await client.ask(request, version, FetchResponse, timeout_s=REQUEST_TIMEOUT_S)
            conversation.session_id = response.session_id
            conversation.session_epoch += 1
            if response.error_code in SESSION_LOST:
                conversation.session_id = 0
                return
            assert response.error_code == ErrorCode.NONE, ErrorCode(response.error_code)
            for topic in response.responses:
                for answer in topic.partitions:
                    if (
                        answer.partition_index in asked
                    ):  # a session may still return partitions that were removed from it
                        self._take(answer, asked[answer.partition_index], response)
        finally:
            for partition in asked:
                del self._asked[partition]
        await runtime.clock.sleep(randomness.uniform(0.0, self._pause_s_max))

    def _request(
        self, runtime: Runtime, conversation: _Conversation, asked: dict[int, int]
    ) -> tuple[FetchRequest, int]:
        """The next request of a conversation. The session continues only with the same partitions."""
        randomness, leaders = runtime.randomness, self.leaders
        version = VERSIONS[randomness.below(len(VERSIONS))]
        if conversation.session_id and conversation.sent.keys() <= asked.keys():
            versions = SESSION_VERSIONS[conversation.uses_ids]
            version = versions[randomness.below(len(versions))]
        else:
            conversation.begin(version, with_session=version > VERSIONS[0] and randomness.below(2) == 0)
        wanted = {partition: (offset, leaders.epoch_of(partition)) for partition, offset in asked.items()}
        changed = [
            FetchPartition(
                partition=partition,
                fetch_offset=offset,
                current_leader_epoch=epoch if randomness.below(2) else -1,
                partition_max_bytes=(1, 4_000, 1 << 20)[randomness.below(3)],
            )
            for partition, (offset, epoch) in wanted.items()
            if conversation.sent.get(partition) != (offset, epoch)
        ]
        conversation.sent.update(wanted)
        topic = FetchTopic(self._topic, partitions=changed)
        if version >= TOPIC_ID_MIN:
            assert leaders.topic_id is not None
            topic = FetchTopic(topic_id=leaders.topic_id, partitions=changed)
        request = FetchRequest(
            max_wait_ms=(0, 50, 300)[randomness.below(3)],
            min_bytes=(1, 1, 5_000)[randomness.below(3)],
            max_bytes=(1, 3_000, 1 << 20)[randomness.below(3)],
            session_id=conversation.session_id,
            session_epoch=conversation.session_epoch,
            topics=[topic],
        )
        return request, version

    def _take(self, answer: FetchedPartition, asked_offset: int, response: FetchResponse) -> None:
        partition = answer.partition_index
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            assert code in RETRIABLE, f"{self.name}: partition {partition} at {asked_offset}: {code.name}"
            self.errors += 1
            self.leaders.hint(partition, answer.current_leader, response.node_endpoints)
            return
        self.looks += 1
        known = self.high_watermarks[partition]  # -1: none yet
        assert answer.high_watermark >= known, (
            f"{self.name}: the high watermark of {partition} fell from {known} to {answer.high_watermark}"
        )
        self.high_watermarks[partition] = answer.high_watermark
        if answer.records:
            assert isinstance(answer.records, memoryview), (
                "the records of a decoded answer must be a slice of its frame"
            )
            self._read(partition, asked_offset, answer.high_watermark, answer.records)

    def _read(self, partition: int, asked_offset: int, high_watermark: int, data: memoryview) -> None:
        log = self.logs[partition]
        for batch in split_batches(data):
            batch.check_crc()
            assert batch.next_offset <= high_watermark, (
                f"partition {partition}: read beyond the high watermark"
            )
            assert batch.next_offset > asked_offset, (
                f"partition {partition}: the broker returned a batch below offset {asked_offset}"
            )
            for record in batch.records(RECORD_BYTES_MAX):
                assert record.value is not None
                value = Value.decode(bytes(record.value))
                self._history.see(partition, record.offset, value, batch.leader_epoch)
                if record.offset >= asked_offset:
                    assert record.offset == len(log), (
                        f"partition {partition}: record offset {record.offset} instead of {len(log)}"
                    )
                    log.append(value)
