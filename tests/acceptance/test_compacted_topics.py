"""A compacted topic in Ponor and in Apache Kafka: the same batches, cleaned by both, must give the
same records.

Skipped without Kafka (`make peers`). Segments are small because of `internal.segment.bytes`;
batches are prebuilt frames, so both logs have the same offsets and roll at the same places.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import follow, places_of, request_moves
from ponor_kafka.api import ApiKey
from ponor_kafka.compression import Codec
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_kafka.record_builder import NewRecord, build_batch

from tests.benchmarks.frames import PRODUCE_VERSION, check_produce, create_topic, framed
from tests.e2e.load.cluster import LocalCluster
from tests.peers.artifacts import PeerMissingError
from tests.peers.kafka_peer import KafkaPeer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KEYS: Final = 60
BATCHES: Final = 240
FILL_BATCHES: Final = 60
KILLS: Final = 10
SETTLE_S_MAX: Final = 120.0
READ_S_MAX: Final = 30.0
KAFKA_SETTINGS: Final = {"log.cleaner.backoff.ms": 200, "log.initial.task.delay.ms": 500}
PONOR_SETTINGS: Final = {"cleaner_interval_ms": 200}
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.01",
}


class Found(NamedTuple):
    """A record as a consumer reads it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


class Pair(NamedTuple):
    """Addresses of both clusters."""

    ponor: str
    kafka: str

    def each(self) -> tuple[str, str]:
        return self.ponor, self.kafka


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("compacted")
    try:
        peer = KafkaPeer(Path(directory) / "kafka", settings=KAFKA_SETTINGS, heap="512m")
        with peer, LocalCluster(Path(directory) / "ponor", settings=PONOR_SETTINGS) as cluster:
            yield Pair(cluster.bootstrap, peer.bootstrap)
    except PeerMissingError as error:
        pytest.skip(str(error))


def produce_request(topic: str, batch: bytearray) -> bytes:
    """The frame of one batch."""
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=[data])
    return framed(ApiKey.PRODUCE, PRODUCE_VERSION, "compacted", request)


def produce(pair: Pair, topic: str, batch: bytearray) -> None:
    """Send one batch to both."""
    frame = produce_request(topic, batch)
    for bootstrap in pair.each():
        check_produce(bootstrap, frame)


def read(bootstrap: str, topic: str) -> list[Found]:
    """Read everything from the beginning, as a consumer does."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Found] = []
    deadline = time.monotonic() + READ_S_MAX
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, str(error)
                return found
            headers = tuple((header[0], header[1]) for header in message.headers() or [])
            offset, timestamp = message.offset(), message.timestamp()[1]
            assert offset is not None
            found.append(Found(offset, message.key(), message.value(), headers, timestamp))  # type: ignore[arg-type]
        raise AssertionError(f"{bootstrap}: {topic} was not read to its end")
    finally:
        consumer.close()


def kept(everything: Sequence[Found], boundary: int) -> list[Found]:
    """The records after a cleaning of everything below the boundary; tombstones are young."""
    last = {found.key: found.offset for found in everything if found.offset < boundary}
    return [found for found in everything if found.offset >= boundary or last[found.key] == found.offset]


def is_cleaned(everything: Sequence[Found], present: Sequence[Found]) -> bool:
    """Whether the records match some cleaning that covers most of the log."""
    offsets = {found.offset for found in present}
    removed = [found.offset for found in everything if found.offset not in offsets]
    if not removed or removed[-1] < len(everything) * 3 // 4:
        return False
    return any(
        list(present) == kept(everything, boundary)
        for boundary in range(removed[-1] + 1, len(everything) + 1)
    )


def settled(pair: Pair, topic: str, everything: Sequence[Found]) -> list[list[Found]]:
    """Return the records of both when both have finished cleaning and are equal; otherwise their
    last records.
    """
    deadline = time.monotonic() + SETTLE_S_MAX
    while True:
        both = [read(bootstrap, topic) for bootstrap in pair.each()]
        if (both[0] == both[1] and is_cleaned(everything, both[0])) or time.monotonic() > deadline:
            return both
        time.sleep(0.5)


def random_batches(seed: int, batches: int) -> Iterator[tuple[list[NewRecord], Codec]]:
    """Few keys, tombstones, nulls and headers, every codec."""
    chance = random.Random(seed)
    now_ms = time.time_ns() // 1_000_000
    for number in range(batches):
        records = [
            NewRecord(
                now_ms + chance.randrange(1_000),
                b"key %d" % chance.randrange(KEYS),
                None if chance.random() < 0.15 else chance.randbytes(chance.randrange(200)),
                [("number", b"%d" % number), ("null", None)][: chance.randrange(3)],
            )
            for _ in range(chance.randrange(1, 6))
        ]
        yield records, chance.choice(list(Codec))


def test_both_keep_the_same_records(pair: Pair) -> None:
    topic = "compacted"
    for bootstrap in pair.each():
        create_topic(bootstrap, topic, 1, {**CONFIGS, "delete.retention.ms": "86400000"})
    everything: list[Found] = []
    for records, codec in random_batches(7, BATCHES):
        produce(pair, topic, build_batch(records, codec=codec))
        everything += [
            Found(
                len(everything) + at,
                bytes(record.key or b""),
                _bytes(record.value),
                _headers(record),
                record.timestamp,
            )
            for at, record in enumerate(records)
        ]
    ponor, kafka = settled(pair, topic, everything)
    assert is_cleaned(everything, kafka)
    assert ponor == kafka
    tombstones = sum(found.value is None for found in ponor)
    print(
        f"\n{len(everything)} records, {len(ponor)} left in both, {tombstones} of them tombstones, "
        f"offsets {ponor[0].offset}..{ponor[-1].offset}"
    )


def test_both_delete_old_tombstones(pair: Pair) -> None:
    topic = "tombstones"
    for bootstrap in pair.each():
        create_topic(bootstrap, topic, 1, {**CONFIGS, "delete.retention.ms": "0"})
    now_ms = time.time_ns() // 1_000_000
    gone, stays = b"gone", b"stays"
    for key, value in ((gone, b"1"), (stays, b"1"), (gone, None)):
        produce(pair, topic, build_batch([(now_ms, key, value)]))
    deadline = time.monotonic() + SETTLE_S_MAX
    number = 0
    while True:  # each round fills segments, so that both clean again
        for _ in range(6):
            number += 1
            produce(pair, topic, build_batch([(now_ms, b"filler %d" % (number % 4), bytes(1_000))]))
        both = [[found.key for found in read(bootstrap, topic)] for bootstrap in pair.each()]
        if all(gone not in keys for keys in both) or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    for keys in both:
        assert gone not in keys
        assert keys[0] == stays


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _headers(record: NewRecord) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, _bytes(value)) for name, value in record.headers)


def fill(bootstrap: str, topic: str, state: dict[bytes, tuple[int, bytes]], offset: int, seed: int) -> int:
    """Produce some batches to one cluster, record the newest values, return the next offset."""
    chance = random.Random(seed)
    now_ms = time.time_ns() // 1_000_000
    for _ in range(FILL_BATCHES):
        records = [
            NewRecord(now_ms, b"key %d" % chance.randrange(KEYS), chance.randbytes(200)) for _ in range(5)
        ]
        batch = build_batch(records, codec=chance.choice(list(Codec)))
        check_produce(bootstrap, produce_request(topic, batch))
        for record in records:
            state[bytes(record.key or b"")] = (offset, bytes(record.value or b""))
            offset += 1
    return offset


def judge(found: Sequence[Found], state: dict[bytes, tuple[int, bytes]], end: int) -> None:
    """Check that offsets rise and are those of the log, and that every key's newest record is present."""
    offsets = [one.offset for one in found]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] < end
    newest = {one.key: (one.offset, one.value) for one in found}
    assert newest == state


def test_reads_are_correct_during_three_cleanings_and_a_move(tmp_path: Path) -> None:
    topic, offset = "moved", 0
    state: dict[bytes, tuple[int, bytes]] = {}
    settings = {**PONOR_SETTINGS, "cleaner_io_bytes_per_s_max": 0}
    with LocalCluster(tmp_path, settings=settings, arguments=["--brokers", "2"]) as cluster:
        create_topic(cluster.bootstrap.split(",")[0], topic, 1, CONFIGS)
        with KafkaClient(cluster.bootstrap) as client:
            for number in range(4):
                (place,) = places_of(client, [topic])
                home = leader_address(client, place.leader_id)
                offset = fill(home, topic, state, offset, seed=number)
                present = cleaned_down_to(cluster.bootstrap, topic, 3 * KEYS)
                judge(present, state, offset)
                if number < 2:
                    continue
                (target,) = [
                    row.node_id for row in client.metadata([]).brokers if row.node_id != place.leader_id
                ]
                request_moves(client, topic, [0], target)
                for _ in follow(client, topic, [0]):
                    pass
                after = read(cluster.bootstrap, topic)
                judge(after, state, offset)
                assert [one.offset for one in after] == [one.offset for one in present]


def test_a_broker_killed_while_it_cleans_loses_nothing(tmp_path: Path) -> None:
    topic, offset = "killed", 0
    state: dict[bytes, tuple[int, bytes]] = {}
    settings = {"cleaner_interval_ms": 10, "cleaner_io_bytes_per_s_max": 100 << 10}
    chance = random.Random(3)
    with LocalCluster(tmp_path, settings=settings) as cluster:
        create_topic(cluster.bootstrap, topic, 1, CONFIGS)
        for number in range(KILLS):
            offset = fill(cluster.bootstrap, topic, state, offset, seed=number)
            time.sleep(chance.random() * 0.5)
            cluster.kill("broker")
            cluster.wait_serving("broker", after_restarts=number + 1)
            judge(read(cluster.bootstrap, topic), state, offset)
        judge(cleaned_down_to(cluster.bootstrap, topic, 3 * KEYS), state, offset)


def cleaned_down_to(bootstrap: str, topic: str, records_max: int) -> list[Found]:
    """Return the records when there are at most this many and two reads are equal."""
    deadline = time.monotonic() + SETTLE_S_MAX
    before: list[Found] = []
    while True:
        found = read(bootstrap, topic)
        if len(found) <= records_max and found == before:
            return found
        assert time.monotonic() < deadline, f"{len(found)} records are left"
        before = found
        time.sleep(0.5)


def leader_address(client: KafkaClient, node_id: int) -> str:
    """The address of a broker."""
    (row,) = [row for row in client.metadata([]).brokers if row.node_id == node_id]
    return f"{row.host}:{row.port}"
