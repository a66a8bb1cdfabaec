"""Input of the copiers, readers of their output, and the check that each input is once in the output."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.acceptance.copiers import Copier
from tests.e2e.load.readers import watermarks

PAUSE_S: Final = 0.1
READ_S_MAX: Final = 300.0
FLUSH_S_MAX: Final = 300.0

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Found:
    """One record of a partition."""

    offset: int
    key: str
    value: str


@contextmanager
def steady_input(bootstrap: str, topics: Sequence[str], partitions: int) -> Iterator[None]:
    """Write a numbered record to each partition ten times per second, with one idempotent producer."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "message.timeout.ms": 600_000,
            "log_level": 2,
        }
    )
    over = threading.Event()
    failed: list[Any] = []

    def write() -> None:
        for number in itertools.count():
            for topic, partition in itertools.product(topics, range(partitions)):
                producer.produce(
                    topic,
                    f"{partition}:{number}",
                    partition=partition,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
            producer.poll(0)
            if over.wait(PAUSE_S):
                return

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert producer.flush(FLUSH_S_MAX) == 0
    assert not failed, failed[0]


class LiveReader:
    """Reads committed records of all partitions during the run."""

    def __init__(self, bootstrap: str, topics: Sequence[str], partitions: int) -> None:
        self.found: dict[Place, list[Found]] = defaultdict(list)
        self._bootstrap = bootstrap
        self._places = list(itertools.product(topics, range(partitions)))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        consumer = _reader(self._bootstrap, self._places)
        while not self._over.is_set():
            _collect(consumer, 0.5, self.found)
        consumer.close()

    def stop(self) -> None:
        """Stop."""
        self._over.set()
        self._thread.join()


def _reader(
    bootstrap: str, places: Sequence[Place], isolation: str = "read_committed", group: str = "reader"
) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
    return consumer


def _collect(consumer: Consumer, timeout_s: float, into: dict[Place, list[Found]]) -> None:
    for message in consumer.consume(1_000, timeout_s):
        if message.error() is None:
            place = message.topic() or "", message.partition() or 0
            key, value = message.key() or b"", message.value() or b""
            into[place].append(Found(message.offset() or 0, key.decode(), value.decode()))


def read_committed(bootstrap: str, topics: Sequence[str], partitions: int) -> dict[Place, list[Found]]:
    """Read all partitions from their begin to their last stable offset."""
    places = list(itertools.product(topics, range(partitions)))
    consumer = _reader(bootstrap, places)
    ends = {place: watermarks(consumer, *place)[1] for place in places}
    found: dict[Place, list[Found]] = defaultdict(list)
    deadline = time.monotonic() + READ_S_MAX
    while any(_position(consumer, place) < end for place, end in ends.items()):
        assert time.monotonic() < deadline, "the output cannot be read"
        _collect(consumer, 0.5, found)
    consumer.close()
    return found


def _position(consumer: Consumer, place: Place) -> int:
    (row,) = consumer.position([TopicPartition(*place)])
    return row.offset


def unstable(bootstrap: str) -> dict[Place, tuple[int, int]]:
    """Partitions of all topics whose last stable offset is below the high watermark, and both offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    topics = admin.list_topics(timeout=READ_S_MAX).topics
    places = [(name, number) for name, topic in topics.items() for number in topic.partitions]
    high = _ends(bootstrap, places, "read_uncommitted")
    stable = _ends(bootstrap, places, "read_committed")
    return {place: (stable[place], high[place]) for place in places if stable[place] < high[place]}


def _ends(bootstrap: str, places: Sequence[Place], isolation: str) -> dict[Place, int]:
    consumer = _reader(bootstrap, [], isolation)
    ends = {place: watermarks(consumer, *place)[1] for place in places}
    consumer.close()
    return ends


def lag(bootstrap: str, copier: Copier, partitions: int) -> int:
    """Number of input records that the copier's group has not committed."""
    consumer = _reader(bootstrap, [], group=copier.identity)
    places = [TopicPartition(copier.source, partition) for partition in range(partitions)]
    committed = consumer.committed(places, timeout=READ_S_MAX)
    ends = [watermarks(consumer, copier.source, partition)[1] for partition in range(partitions)]
    consumer.close()
    return sum(end - max(0, row.offset) for row, end in zip(committed, ends, strict=True))


def judge(
    copier: Copier, partitions: int, read: dict[Place, list[Found]], live: dict[Place, list[Found]]
) -> int:
    """Check the output of one copier against its input and its report; return the number of records.

    Raises:
        AssertionError: a record is lost, duplicated, reordered or aborted, or a transaction is torn.
    """
    total = 0
    for partition in range(partitions):
        source = [row.value for row in read[copier.source, partition]]
        target = [row.value for row in read[copier.target, partition]]
        total += len(target)
        where = f"{copier.target}-{partition}"
        assert target == source, f"{where}: {_first_difference(source, target)}"
        # Two readers saw the same records at the same offsets, one of them while transactions were open.
        assert live[copier.target, partition] == read[copier.target, partition], where
    _judge_transactions(copier, partitions, read)
    return total


def _judge_transactions(copier: Copier, partitions: int, read: dict[Place, list[Found]]) -> None:
    written = Counter(row.key for number in range(partitions) for row in read[copier.target, number])
    for each in copier.transactions():
        count = written.pop(each.name, 0)
        if each.outcome == "commit":
            assert count == each.records, f"{each}: {count} records are visible"
        elif each.outcome == "abort" or not each.ended_ns:
            assert count == 0, f"{each}: {count} records are visible"
        else:
            assert count in {0, each.records}, f"{each}: {count} records are visible"
    assert not written, f"transactions that {copier.name} does not report: {written}"


def _first_difference(source: list[str], target: list[str]) -> str:
    at = next(
        (at for at, (one, other) in enumerate(zip(source, target, strict=False)) if one != other),
        min(len(source), len(target)),
    )
    return (
        f"{len(source)} inputs, {len(target)} outputs, different from number {at}:"
        f" {source[at : at + 3]}, {target[at : at + 3]}"
    )
