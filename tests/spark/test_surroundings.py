"""Spark reads while the cluster changes: compaction, moves, a broker that crashes and restarts,
further records. The rows are always a prefix of a consumer's.

Also checks that Spark's reads use no broker, and that a task's memory is bounded for topics of any size.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ponor_spark.offsets import batch_ranges
from ponor_spark.options import parse_options
from ponor_spark.planning import plan
from ponor_spark.pushdown import PushedFilters
from ponor_spark.snapshot_opening import close_snapshot, open_snapshot

from tests.e2e.load.steady import wait_for
from tests.spark.kafka_rows import KafkaRow, Sent, assorted, consumed, create_topic, produce
from tests.spark.topics_cluster import BROKERS, TopicsCluster, topics_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)
PARTITIONS = 3
MIB = 1 << 20


@contextmanager
def going_on(kafka: str, topic: str) -> Iterator[threading.Event]:
    """Produce records continuously, in small portions, until the block ends."""
    stop = threading.Event()

    def send() -> None:
        seed = 0
        while not stop.wait(0.05):
            seed += 1
            produce(kafka, topic, assorted(60, PARTITIONS, seed=seed), timeout_ms=300_000)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield stop
    finally:
        stop.set()
        sender.join(600)
    assert not sender.is_alive()


def test_rows_are_a_prefix_of_a_consumers_during_all_changes(
    spark: SparkSession, topics: TopicsCluster, tmp_path: Path
) -> None:
    assert topics
    reads: list[list[KafkaRow]] = []
    with topics_cluster(tmp_path, spark) as cluster:
        processes = cluster.processes
        create_topic(cluster.kafka, "busy", PARTITIONS)
        home = [processes.process("broker", number)["node_id"] for number in range(BROKERS)]
        with going_on(cluster.kafka, "busy"):
            reads.append(cluster.rows("busy"))
            for target in (home[1], home[0]):
                processes.run("partition", "move", "busy", "0", "--to", str(target), "--wait")
                reads.append(cluster.rows("busy"))
            restarts = processes.process("broker", 1)["restarts"]
            processes.kill("broker", 1)
            reads.append(cluster.rows("busy"))
            processes.wait_serving("broker", 1, after_restarts=restarts + 1)
            reads.append(cluster.rows("busy"))
        reads.append(cluster.same_as_a_consumer("busy"))
        done = {"outcome": "done"}
        wait_for(
            lambda: processes.metric("compactor", "ponor_compactor_tasks_total", done) > 0,
            "something was compacted",
        )
        seen = _by_partition(consumed(cluster.kafka, "busy"))
    for rows in reads:
        for partition, part in _by_partition(rows).items():
            assert part == seen[partition][: len(part)]
    assert [len(rows) for rows in reads] == sorted(len(rows) for rows in reads)


def _by_partition(rows: list[KafkaRow]) -> dict[int, list[KafkaRow]]:
    found: dict[int, list[KafkaRow]] = defaultdict(list)
    for row in rows:
        found[row.partition].append(row)
    return found


def test_the_tail_follows_the_objects_without_a_gap_or_a_duplicate(topics: TopicsCluster) -> None:
    """Also if some of it is uploaded while Spark reads: both ends were fixed when the snapshot was opened."""
    create_topic(topics.kafka, "seam", PARTITIONS)
    frames: list[Any] = []
    sizes: list[int] = []
    for seed in range(6):
        produce(topics.kafka, "seam", assorted(90, PARTITIONS, seed=seed), "lz4")
        frames.append(topics.load("seam", includeHeaders=True, tail="broker"))
        sizes.append(90 * (seed + 1))
    topics.until_in_objects("seam")
    seen = {(row.partition, row.offset) for row in consumed(topics.kafka, "seam")}
    for frame, size in zip(frames, sizes, strict=True):
        offsets = [(row.partition, row.offset) for row in frame.collect()]
        assert len(offsets) == len(set(offsets)) == size
        assert set(offsets) == {each for each in seen if each[1] < size // PARTITIONS}
    assert topics.rows("seam", tail="broker") == consumed(topics.kafka, "seam")


def test_brokers_receive_no_request_and_send_nothing(topics: TopicsCluster) -> None:
    """No request and no byte, by their own metrics, if the options name controllers and store."""
    create_topic(topics.kafka, "unasked", PARTITIONS)
    produce(
        topics.kafka,
        "unasked",
        [Sent(n % PARTITIONS, None, bytes(1000), headers=None) for n in range(30_000)],
    )
    topics.until_in_objects("unasked")
    options = {"subscribe": "unasked", "controllers": _controller(topics), "store": _store(topics)}
    before = [_requests(topics, number) for number in range(BROKERS)]
    frame = topics.spark.read.format("ponor").options(**options).load()
    assert frame.where("length(value) = 1000").count() == 30_000
    assert [_requests(topics, number) for number in range(BROKERS)] == before


def _controller(topics: TopicsCluster) -> str:
    addresses: dict[str, str] = topics.processes.process("controller")["addresses"]
    return addresses["session"]


def _store(topics: TopicsCluster) -> str:
    options = parse_options(topics.options("unasked"), streaming=False)
    snapshot = open_snapshot(options)
    close_snapshot(snapshot, options)
    return snapshot.object_store


def _requests(topics: TopicsCluster, number: int) -> tuple[float, float, float]:
    """Requests of clients, their bytes in both directions, and bytes read from objects for them."""
    processes = topics.processes
    return (
        processes.metric("broker", "ponor_kafka_requests_total", {}, number),
        processes.metric("broker", "ponor_kafka_bytes_total", {}, number),
        processes.metric("broker", "ponor_cold_read_bytes_total", {}, number),
    )


READER = """
import pathlib, pickle, sys
from ponor_spark.decode.schema import FULL
from ponor_spark.split_reading import read_split

rows = size = 0
for split in pickle.load(open(sys.argv[1], "rb")):
    for batch in read_split(split, FULL.names):
        rows += batch.num_rows
        size += batch.nbytes
status = pathlib.Path("/proc/self/status").read_text()
print(rows, size, int(status.partition("VmHWM:")[2].split()[0]) << 10)
"""


def test_a_topic_larger_than_the_memory_is_scanned(topics: TopicsCluster, tmp_path: Path) -> None:
    """Half a gigabyte of records in one split, read by a process that never holds a third of it."""
    create_topic(topics.kafka, "large", config={"max.message.bytes": "2000000"})
    value = os.urandom(2_000) * 32
    produce(topics.kafka, "large", (Sent(0, None, value) for _ in range(8_000)), "zstd")
    topics.until_in_objects("large")
    options = parse_options(topics.options("large", splitBytes="16g"), streaming=False)
    snapshot = open_snapshot(options)
    splits = plan(snapshot, batch_ranges(snapshot, options), PushedFilters(), options)
    (tmp_path / "splits").write_bytes(pickle.dumps(splits))
    command = [sys.executable, "-c", READER, str(tmp_path / "splits")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    close_snapshot(snapshot, options)
    rows, size, peak = map(int, done.stdout.split())
    assert rows == 8_000
    assert size >= 8_000 * len(value) > 480 * MIB
    assert peak < 300 * MIB, f"{peak / MIB:.0f} MiB for {size / MIB:.0f} MiB of rows"
