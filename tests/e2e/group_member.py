"""One member of a consumer group as a separate process: it consumes, commits, and logs its commits.

Run as `python -m tests.e2e.group_member SPEC` (JSON). It leaves the group when its stop file appears, and may
be killed at any time. Each line of its log is JSON: `intent` before a commit and `done` after its success,
both with the offsets by partition, and `left` at the end. Records that it could not commit because of a
rebalance are dropped: the next owner receives them again.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

Ranges: TypeAlias = dict[int, tuple[int, int]]
"""Maps a partition to its first offset and its end offset."""

COMMIT_RETRY_S_MAX = 600.0
REBALANCE_ERRORS = {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "FENCED_INSTANCE_ID"}
LOCAL_REBALANCE_ERRORS = {"_ASSIGNMENT_LOST", "_STATE", "_ILLEGAL_GENERATION"}


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """Configuration of a member."""

    family: str
    bootstrap: str
    topic: str
    group: str
    log_file: str
    stop_file: str
    instance_id: str | None = None
    session_timeout_ms: int = 6_000
    records_per_commit_max: int = 100
    pause_s: float = 0.02

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class MemberLog:
    """The member's log, flushed line by line, so that it survives a SIGKILL."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def write(self, event: str, ranges: Mapping[int, tuple[int, int]] | None = None) -> None:
        line = json.dumps({"event": event, "ranges": dict(ranges or {}), "at": time.time()})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class Patience:
    """Retry a commit for a while, because the broker may be down."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + COMMIT_RETRY_S_MAX

    def check(self, error: Exception) -> None:
        if time.monotonic() > self._deadline:
            raise AssertionError(f"commits fail for {COMMIT_RETRY_S_MAX} s") from error


class Client(Protocol):
    """Client operations that the loop needs."""

    def poll(self) -> Iterable[tuple[int, int, bytes]]: ...

    def commit(self, ranges: Ranges) -> bool: ...

    def close(self) -> None: ...


def gather(records: Iterable[tuple[int, int, bytes]]) -> Ranges:
    """Collect offsets by partition; check that they are consecutive and that each value matches its place."""
    ranges: Ranges = {}
    for partition, offset, value in records:
        assert value == f"{partition}/{offset}".encode(), (partition, offset, value)
        first, end = ranges.get(partition, (offset, offset))
        assert offset == end, f"partition {partition}: {offset} after {end - 1}"
        ranges[partition] = (first, offset + 1)
    return ranges


def run_member(spec: MemberSpec, client: Client) -> None:
    """Loop of the blocking clients."""
    log = MemberLog(spec.log_file)
    while not Path(spec.stop_file).exists():
        ranges = gather(client.poll())
        if ranges:
            log.write("intent", ranges)
            if client.commit(ranges):
                log.write("done", ranges)
            time.sleep(spec.pause_s)
    client.close()
    log.write("left")


class LibrdkafkaClient:
    """Member on confluent_kafka.Consumer."""

    def __init__(self, spec: MemberSpec) -> None:
        from confluent_kafka import Consumer

        settings: dict[str, Any] = {
            "bootstrap.servers": spec.bootstrap,
            "group.id": spec.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "roundrobin",
            "session.timeout.ms": spec.session_timeout_ms,
            "heartbeat.interval.ms": 500,
            "reconnect.backoff.max.ms": 500,
            "log_level": 2,
        }
        if spec.instance_id is not None:
            settings["group.instance.id"] = spec.instance_id
        self._consumer = Consumer(settings)
        self._topic = spec.topic
        self._records_max = spec.records_per_commit_max
        self._consumer.subscribe([spec.topic])

    def poll(self) -> Iterable[tuple[int, int, bytes]]:
        messages = self._consumer.consume(self._records_max, timeout=0.5)
        owned = {place.partition for place in self._consumer.assignment()}
        for message in messages:
            partition, offset, value = message.partition(), message.offset(), message.value()
            # A rebalance during `consume` may have revoked the partition.
            if message.error() is None and partition in owned:
                assert partition is not None
                assert offset is not None
                assert value is not None
                yield partition, offset, value

    def commit(self, ranges: Ranges) -> bool:
        from confluent_kafka import KafkaException, TopicPartition

        places = [TopicPartition(self._topic, partition, end) for partition, (_, end) in ranges.items()]
        patience = Patience()
        while True:
            try:
                committed = self._consumer.commit(offsets=places, asynchronous=False)
                assert committed is not None
                assert all(place.error is None for place in committed), committed
            except KafkaException as error:
                name = error.args[0].name()
                if name in REBALANCE_ERRORS | LOCAL_REBALANCE_ERRORS:
                    return False
                patience.check(error)
                time.sleep(0.2)
            else:
                return True

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonClient:
    """Member on kafka.KafkaConsumer."""

    def __init__(self, spec: MemberSpec) -> None:
        from kafka import KafkaConsumer
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        self._consumer = KafkaConsumer(
            spec.topic,
            bootstrap_servers=spec.bootstrap,
            group_id=spec.group,
            group_instance_id=spec.instance_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[RoundRobinPartitionAssignor],
            session_timeout_ms=spec.session_timeout_ms,
            heartbeat_interval_ms=500,
        )
        self._topic = spec.topic
        self._records_max = spec.records_per_commit_max

    def poll(self) -> Iterable[tuple[int, int, bytes]]:
        for records in self._consumer.poll(timeout_ms=500, max_records=self._records_max).values():
            for record in records:
                yield record.partition, record.offset, record.value

    def commit(self, ranges: Ranges) -> bool:
        from kafka import OffsetAndMetadata, TopicPartition
        from kafka.errors import CommitFailedError, KafkaError

        places = {
            TopicPartition(self._topic, partition): OffsetAndMetadata(end, "", -1)
            for partition, (_, end) in ranges.items()
        }
        patience = Patience()
        while True:
            try:
                self._consumer.commit(places)
            except CommitFailedError:
                return False
            except KafkaError as error:
                if type(error).__name__ in {
                    "RebalanceInProgressError",
                    "IllegalGenerationError",
                    "UnknownMemberIdError",
                }:
                    return False
                patience.check(error)
                time.sleep(0.2)
            else:
                return True

    def close(self) -> None:
        self._consumer.close()


async def run_aiokafka(spec: MemberSpec) -> None:
    """Member on aiokafka.AIOKafkaConsumer.

    Rebalances run concurrently; the lock excludes them between a read and its commit.
    """
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    busy = asyncio.Lock()

    class WaitForCommit(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            async with busy:
                pass

        async def on_partitions_assigned(self, assigned: Any) -> None:
            pass

    consumer = AIOKafkaConsumer(
        bootstrap_servers=spec.bootstrap,
        group_id=spec.group,
        group_instance_id=spec.instance_id,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        partition_assignment_strategy=[RoundRobinPartitionAssignor],
        session_timeout_ms=spec.session_timeout_ms,
        heartbeat_interval_ms=500,
    )
    consumer.subscribe([spec.topic], listener=WaitForCommit())
    await consumer.start()
    log = MemberLog(spec.log_file)
    while not Path(spec.stop_file).exists():
        async with busy:
            batches = await consumer.getmany(timeout_ms=200, max_records=spec.records_per_commit_max)
            ranges = gather((r.partition, r.offset, r.value) for records in batches.values() for r in records)
            if ranges:
                log.write("intent", ranges)
                if await _commit_aiokafka(consumer, spec.topic, ranges):
                    log.write("done", ranges)
        await asyncio.sleep(spec.pause_s)
    await consumer.stop()
    log.write("left")


async def _commit_aiokafka(consumer: Any, topic: str, ranges: Ranges) -> bool:
    from aiokafka import TopicPartition
    from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

    patience = Patience()
    while True:
        try:
            await consumer.commit(
                {TopicPartition(topic, partition): end for partition, (_, end) in ranges.items()}
            )
        except (CommitFailedError, IllegalStateError):
            return False
        except KafkaError as error:
            patience.check(error)
            await asyncio.sleep(0.2)
        else:
            return True


def main() -> None:
    """Entry point of the process."""
    spec = MemberSpec(**json.loads(sys.argv[1]))
    if spec.family == "aiokafka":
        asyncio.run(run_aiokafka(spec))
        return
    clients: dict[str, Callable[[MemberSpec], Client]] = {
        "librdkafka": LibrdkafkaClient,
        "kafka-python": KafkaPythonClient,
    }
    run_member(spec, clients[spec.family](spec))


if __name__ == "__main__":
    main()
