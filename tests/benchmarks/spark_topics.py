"""Topics of the comparison with Spark's Kafka connector: the same records in the same batches in
two clusters.

Sizes, keys, offsets and timestamps of the records are fixed. They are written with librdkafka, and
the benchmark waits until they are in objects. Values are JSON rows, which compress as logs do.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from ponor_cli.clients.cluster_address import ClusterAddress
from ponor_cli.clients.image_reader import image_of

from tests.benchmarks.spark_queries import Middle
from tests.e2e.load.cluster import LocalCluster
from tools.demo.holdings import holdings_of

KEYS: Final = 1_000
POOL: Final = 4_096
"""Distinct values. A producer's batch contains far fewer, so none repeats within a batch."""
CHUNK: Final = 2_000
FLUSH_S_MAX: Final = 600.0
UPLOAD_S_MAX: Final = 300.0
PRODUCER: Final = {
    "compression.type": "lz4",
    "batch.size": 65_536,
    "linger.ms": 50,
    "queue.buffering.max.kbytes": 131_072,
    "enable.idempotence": True,
    "log_level": 2,
}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """This many records of about this many bytes, evenly over partitions, one millisecond apart
    within a partition, beginning at `start_ms`.
    """

    name: str
    records: int
    record_bytes: int
    partitions: int
    start_ms: int

    @property
    def label(self) -> str:
        """A name for tables."""
        return f"{self.record_bytes:,} B x {self.records:,}"

    @property
    def partition_records(self) -> int:
        """Records in each partition."""
        return self.records // self.partitions

    @property
    def middle(self) -> Middle:
        """45 % to 55 % of every partition."""
        begin, end = self.partition_records * 45 // 100, self.partition_records * 55 // 100
        return Middle(begin, end, self.start_ms + begin, self.start_ms + end)

    def values(self) -> list[bytes]:
        """The pool of values, always the same for one size."""
        chance = random.Random(self.record_bytes)
        return [_value(chance, self.record_bytes) for _ in range(POOL)]


def fill(bootstrap: str, spec: TopicSpec) -> None:
    """Create and write the topic, with retention off, because the records are older than a default
    retention may allow.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(spec.name, num_partitions=spec.partitions, config={"retention.ms": "-1"})
    admin.create_topics([topic])[spec.name].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    failures: list[Any] = []
    values = spec.values()
    for begin in range(0, spec.partition_records, CHUNK):
        for partition in range(spec.partitions):
            numbers = range(begin, min(begin + CHUNK, spec.partition_records))
            _send(producer, spec, partition, numbers, values, failures)
        assert not failures, failures[0]
    assert producer.flush(FLUSH_S_MAX) == 0, f"{spec.name} was not written within {FLUSH_S_MAX:.0f} s"
    assert not failures, failures[0]


def await_uploads(cluster: LocalCluster, spec: TopicSpec) -> None:
    """Wait until every record is in a committed object, because our source reads only objects."""
    where = cluster.describe()
    address = ClusterAddress(where["bootstrap"], where["controllers"], where["object_store"])
    deadline = time.monotonic() + UPLOAD_S_MAX
    while True:
        held = holdings_of(image_of(address), spec.name, spec.partitions)
        if all(held.end_of(each) >= spec.partition_records for each in range(spec.partitions)):
            return
        assert time.monotonic() < deadline, f"{spec.name} was not uploaded within {UPLOAD_S_MAX:.0f} s"
        time.sleep(0.3)


def _send(
    producer: Any, spec: TopicSpec, partition: int, numbers: range, values: list[bytes], failures: list[Any]
) -> None:
    for number in numbers:
        at = number * spec.partitions + partition
        while True:
            try:
                producer.produce(
                    spec.name,
                    values[at * 7 % POOL],
                    b"key-%d" % (at % KEYS),
                    partition,
                    timestamp=spec.start_ms + number,
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.05)
    producer.poll(0)


def _value(chance: random.Random, size_bytes: int) -> bytes:
    """A JSON row: names repeat, numbers do not."""
    row = f'{{"id":"{chance.getrandbits(48):012x}"'
    number = 0
    while len(row) < size_bytes - 1:
        row += f',"field_{number % 24}":{chance.randrange(10**9)}'
        number += 1
    return (row[: size_bytes - 1] + "}").encode()


def start_ms() -> int:
    """A day ago, at a whole second."""
    return (int(time.time()) - 86_400) * 1000
