"""Topic to Iceberg with a kill between every two steps, hundreds of times, while another writer
works on the table: 0 lost, 0 duplicate rows.

PONOR_KILLS sets the number (200). The topic is real: `format("ponor")` on a cluster, with a limited
rate so that there are micro-batches for all kills. Most kills end the query within the process
(iceberg_kills.py explains why this is equivalent); at every step, the whole driver including its
JVM is also ended by SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ponor_spark.decode.schema import FULL
from ponor_spark.jobs.iceberg.steps import Step
from ponor_spark.jobs.iceberg.table import IcebergTable
from ponor_spark.jobs.session import session

from tests.spark.iceberg_kills import TABLE, catalog_in, kill_again_and_again, maintain, rows_of
from tests.spark.kafka_rows import Sent, consumed, create_topic, produce
from tests.spark.topics_cluster import TopicsCluster, topics_cluster

KILLS = int(os.environ.get("PONOR_KILLS", "200"))
BATCH_ROWS = 40
PARTITIONS = 2
DRIVER_S_MAX = 240
pytestmark = pytest.mark.timeout(120 + 30 * KILLS + DRIVER_S_MAX * (len(Step) + 1))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicsCluster]:
    """A session and a cluster for both tests."""
    settings = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
    }
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with (
        session("kills", settings, "local[2]") as spark,
        topics_cluster(tmp_path_factory.mktemp("topics"), spark) as running,
    ):
        yield running


def topic_rows(cluster: TopicsCluster, topic: str) -> Counter[tuple[str, int, int, bytes | None]]:
    return Counter(
        (row.topic, row.partition, row.offset, row.value) for row in consumed(cluster.kafka, topic)
    )


def filled(cluster: TopicsCluster, topic: str, rows: int) -> str:
    create_topic(cluster.kafka, topic, partitions=PARTITIONS)
    produce(
        cluster.kafka, topic, [Sent(n % PARTITIONS, b"key %d" % (n % 9), b"row %d" % n) for n in range(rows)]
    )
    cluster.until_in_objects(topic)
    return topic


def test_a_query_killed_between_every_two_steps(cluster: TopicsCluster, tmp_path: Path) -> None:
    # One batch is completed in the run after each kill that followed a commit; a few more are left
    # for the end.
    topic = filled(cluster, "killed", BATCH_ROWS * (KILLS // len(Step) + 5))
    IcebergTable(catalog_in(tmp_path / "lake"), TABLE).ensure(FULL)

    def stream() -> Any:
        return cluster.stream(topic, maxOffsetsPerTrigger=BATCH_ROWS)

    hit = kill_again_and_again(cluster.spark, stream, tmp_path, KILLS)
    assert hit.total() == KILLS
    assert set(hit) == set(Step) or len(Step) > KILLS
    assert rows_of(tmp_path) == topic_rows(cluster, topic)


def test_a_driver_killed_with_its_jvm(cluster: TopicsCluster, tmp_path: Path) -> None:
    topic = filled(cluster, "driver-killed", BATCH_ROWS * 4)
    options = cluster.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=BATCH_ROWS)
    # The last steps are the critical ones; a small PONOR_KILLS uses only them.
    for number, step in enumerate(list(Step)[-KILLS:]):
        assert drive(tmp_path, options, step) == -signal.SIGKILL, step
        maintain(tmp_path, "compaction and expiry" if number % 2 else "property", number)
    assert drive(tmp_path, options, None) == 0
    assert rows_of(tmp_path) == topic_rows(cluster, topic)


def drive(folder: Path, options: dict[str, str], step: Step | None) -> int:
    """Start a driver in its own process group with its JVM; return how it ended."""
    program = Path(__file__).parents[1] / "spark" / "iceberg_driver.py"
    words = [sys.executable, str(program), str(folder), json.dumps(options), step or ""]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(words, start_new_session=True, env=environment)
    try:
        return process.wait(DRIVER_S_MAX)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
