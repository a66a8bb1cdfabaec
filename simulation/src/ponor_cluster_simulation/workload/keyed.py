"""A topic with log compaction: one writer, its readers, and the rules for what compaction may remove.

A record carries its key and its own number. The cleaner may remove records that a later record of
the same key replaces, and tombstones. All other records keep their offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ponor_kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ponor_kafka.record_batch import split_batches
from ponor_kafka.record_builder import NewRecord, build_batch
from ponor_kafka.records import Record
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.workload.consumer import RECORD_BYTES_MAX
from ponor_cluster_simulation.workload.consumer import RETRIABLE as FETCH_RETRIABLE
from ponor_cluster_simulation.workload.kafka_client import KafkaClient
from ponor_cluster_simulation.workload.leaders import Leaders
from ponor_cluster_simulation.workload.producer import RETRIABLE as PRODUCE_RETRIABLE

TOPIC: Final = "keyed"
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "5000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "300",
}
KEYS: Final = 7
REQUEST_TIMEOUT_S: Final = 4.0
CREATED: Final = frozenset({ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS})


class Keyed(NamedTuple):
    """A record: `number` is unique, `is_tombstone` means no value."""

    key: int
    number: int
    is_tombstone: bool


@dataclass(slots=True)
class KeyedHistory:
    """What the writer and the readers of the topic have sent and received.

    Attributes:
        sent: all sent records by number.
        acknowledged: acknowledged records by offset.
        seen: records that a reader saw, by offset.
    """

    sent: list[Keyed] = field(default_factory=list)
    acknowledged: dict[int, Keyed] = field(default_factory=dict)
    seen: dict[int, Keyed] = field(default_factory=dict)
    reads: int = 0

    def latest(self) -> dict[int, tuple[int, Keyed]]:
        """Return the last acknowledged record of each key, with its offset."""
        return {record.key: (offset, record) for offset, record in sorted(self.acknowledged.items())}

    def see(self, offset: int, record: Keyed) -> None:
        """Add a record that a reader saw to the history, and check it."""
        self.reads += 1
        known = self.seen.setdefault(offset, record)
        assert known == record, f"{TOPIC}: offset {offset} was {known} and is {record}"
        acknowledged = self.acknowledged.get(offset, record)
        assert acknowledged == record, (
            f"{TOPIC}: offset {offset} was acknowledged as {acknowledged} and is {record}"
        )


class KeyedWriter:
    """Writes one batch at a time. Does not send a batch again if no acknowledgement arrives. Its
    process never crashes.
    """

    def __init__(self, history: KeyedHistory, *, bootstrap: Sequence[str], pause_s_max: float) -> None:
        self._history = history
        self._bootstrap = tuple(bootstrap)
        self._pause_s_max = pause_s_max
        self._leaders = Leaders("keyed-writer", TOPIC, bootstrap)
        self.stop = False
        self.is_finished = False

    async def run(self, runtime: Runtime) -> None:
        """Write until stopped."""
        while not self.stop and not await self._made(runtime):
            await runtime.clock.sleep(runtime.randomness.uniform(0.05, 0.2))
        while not self.stop:
            await runtime.clock.sleep(runtime.randomness.uniform(0.01, self._pause_s_max))
            leader = self._leaders.leader_of(0)
            if leader is None:
                await _learn(runtime, self._leaders)
                continue
            try:
                client = await KafkaClient.connect(runtime, self._leaders.addresses[leader], "keyed-writer")
            except ConnectionClosedError:
                await _learn(runtime, self._leaders)
                continue
            try:
                while not self.stop and await self._write(runtime, client):
                    await runtime.clock.sleep(runtime.randomness.uniform(0.01, self._pause_s_max))
            except ConnectionClosedError:
                pass
            finally:
                await client.close()
                await _learn(runtime, self._leaders)
        self.is_finished = True

    async def _made(self, runtime: Runtime) -> bool:
        address = self._bootstrap[runtime.randomness.below(len(self._bootstrap))]
        configs = [CreatableTopicConfig(name, value) for name, value in CONFIGS.items()]
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, configs=configs)
        try:
            async with KafkaClient.connected(runtime, address, "keyed-writer") as client:
                request = CreateTopicsRequest(topics=[topic], timeout_ms=3_000)
                answer = await client.ask(request, 5, CreateTopicsResponse, timeout_s=10.0)
        except ConnectionClosedError:
            return False
        return answer.topics[0].error_code in CREATED

    async def _write(self, runtime: Runtime, client: KafkaClient) -> bool:
        """Write one batch. Return whether the broker still accepts batches."""
        below, history = runtime.randomness.below, self._history
        batch = [
            Keyed(below(KEYS), len(history.sent) + place, below(8) == 0) for place in range(1 + below(4))
        ]
        history.sent.extend(batch)
        now_ms = runtime.clock.wall_ms()
        records = [
            NewRecord(
                now_ms,
                str(record.key).encode(),
                None if record.is_tombstone else bytes(30 + below(900)),
                [("number", str(record.number).encode())],
            )
            for record in batch
        ]
        data = [PartitionProduceData(0, memoryview(bytes(build_batch(records))))]
        request = ProduceRequest(
            acks=-1, timeout_ms=2_000, topic_data=[TopicProduceData(TOPIC, partition_data=data)]
        )
        answer = await client.ask(request, 7, ProduceResponse, timeout_s=REQUEST_TIMEOUT_S)
        row = answer.responses[0].partition_responses[0]
        code = ErrorCode(row.error_code)
        if code is ErrorCode.NONE:
            for place, record in enumerate(batch):
                history.acknowledged[row.base_offset + place] = record
            return True
        assert code in PRODUCE_RETRIABLE, code.name
        return False


class KeyedReader:
    """Reads the whole log repeatedly, and again after `stop` is set. Its process never crashes."""

    def __init__(
        self,
        name: str,
        history: KeyedHistory,
        checks: Checks,
        *,
        bootstrap: Sequence[str],
        stop: bool = False,
    ) -> None:
        self.name = name
        self._history = history
        self._checks = checks
        self._leaders = Leaders(name, TOPIC, bootstrap)
        self._due: dict[int, tuple[int, Keyed]] = {}
        self.stop = stop
        self.is_finished = False

    async def run(self, runtime: Runtime) -> None:
        """Read the whole log repeatedly, until a read that began after the stop passes `_judge`."""
        while not self.is_finished:
            is_last = self.stop
            log = await self._read_all(runtime)
            if log is not None:
                self.is_finished = self._judge(log) and is_last
            await runtime.clock.sleep(runtime.randomness.uniform(0.2, 1.5))

    async def _read_all(self, runtime: Runtime) -> dict[int, Keyed] | None:
        """Read the log from one leader; return None if the read did not reach the end. The leader must
        have all records that were acknowledged before the read.
        """
        self._due = self._history.latest()
        leader = self._leaders.leader_of(0)
        if leader is None:
            await _learn(runtime, self._leaders)
            return None
        try:
            address = self._leaders.addresses[leader]
            async with KafkaClient.connected(runtime, address, self.name) as client:
                return await self._converse(runtime, client)
        except ConnectionClosedError:
            await _learn(runtime, self._leaders)
            return None

    async def _converse(self, runtime: Runtime, client: KafkaClient) -> dict[int, Keyed] | None:
        log: dict[int, Keyed] = {}
        at, end = 0, 1
        while at < end:
            partition = FetchPartition(partition=0, fetch_offset=at, partition_max_bytes=8_000)
            topic = FetchTopic(TOPIC, partitions=[partition])
            request = FetchRequest(
                max_wait_ms=0, min_bytes=1, max_bytes=8_000, session_epoch=-1, topics=[topic]
            )
            answer = await client.ask(request, 11, FetchResponse, timeout_s=REQUEST_TIMEOUT_S)
            row = answer.responses[0].partitions[0]
            code = ErrorCode(row.error_code)
            if code is not ErrorCode.NONE:
                assert code in FETCH_RETRIABLE, f"{self.name}: {TOPIC} at {at}: {code.name}"
                await _learn(runtime, self._leaders)
                return None
            end = row.high_watermark
            if row.records:
                assert isinstance(row.records, memoryview), (
                    "the records of a decoded answer must be a slice of its frame"
                )
                at = self._take(row.records, at, log)
        return log

    def _take(self, data: memoryview, at: int, log: dict[int, Keyed]) -> int:
        """Check the records of an answer. Return the next offset."""
        for batch in split_batches(data):
            batch.check_crc()
            assert batch.next_offset > at, (
                f"{TOPIC}: the broker returned a batch that ends at {batch.next_offset}, not after"
                f" offset {at}"
            )
            for record in batch.records(RECORD_BYTES_MAX):
                if record.offset < at:
                    continue
                log[record.offset] = self._identified(record)
            at = batch.next_offset
        return at

    def _identified(self, found: Record) -> Keyed:
        """The record as it was sent."""
        assert found.key is not None
        ((_, number),) = found.headers
        assert number is not None
        record = self._history.sent[int(bytes(number))]
        same = (record.key, record.is_tombstone) == (int(bytes(found.key)), found.value is None)
        self._checks.require(
            37, same, f"{TOPIC}: the record at offset {found.offset} differs from {record}, which was sent"
        )
        self._history.see(found.offset, record)
        return record

    def _judge(self, log: dict[int, Keyed]) -> bool:
        """Check that the log contains, for each key, the last acknowledged record or a later one.

        Return False if a tombstone was removed and a record that it deletes is left. A read during a cleaning
        may find this.
        """
        is_clean = True
        for key, (offset, latest) in self._due.items():
            if any(at >= offset and record.key == key for at, record in log.items()):
                continue
            self._checks.require(
                37,
                latest.is_tombstone or self._may_be_deleted(key, offset),
                f"{TOPIC}: {latest} was acknowledged at {offset} and is missing, and no later record has"
                " its key",
            )
            is_clean = is_clean and all(record.key != key for record in log.values())
        self._checks.require(37, True, "the log was judged")
        return is_clean

    def _may_be_deleted(self, key: int, offset: int) -> bool:
        """Whether a tombstone of the key may be after an offset; the offset of an unacknowledged tombstone is
        unknown.
        """
        where = {record.number: at for at, record in self._history.acknowledged.items()}
        return any(
            record.key == key and record.is_tombstone and where.get(record.number, offset + 1) > offset
            for record in self._history.sent
        )


async def _learn(runtime: Runtime, leaders: Leaders) -> None:
    """Request the leaders once."""
    leaders.doubt()
    try:
        await leaders.ask(runtime)
    except ConnectionClosedError:
        await runtime.clock.sleep(runtime.randomness.uniform(0.02, 0.1))
