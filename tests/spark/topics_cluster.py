"""A cluster with topics for Spark: two brokers, a compactor, uploads every fraction of a second; and how to
read it.

Starts the cluster, waits until produced records are in objects, and opens the DataFrames of a topic.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ponor_spark.options import parse_options
from ponor_spark.snapshot import Snapshot
from ponor_spark.snapshot_opening import close_snapshot, open_snapshot

from tests.e2e.load.cluster import SMALL_LOGS, LocalCluster
from tests.spark.kafka_rows import WAIT_S, KafkaRow, consumed, ends, spark_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "upload_interval_ms": "300",
    "compaction_settle_ms": "0",
    "compaction_patience_ms": "500",
    "compaction_fan_in": "2",
    "compaction_survey_interval_ms": "200",
    "compactor_poll_interval_ms_max": "300",
    "cleaner_interval_ms": "200",
    "destroy_delay_ms": "1000",
}
BROKERS = 2


class TopicsCluster:
    """A running cluster and the session that reads it."""

    def __init__(self, cluster: LocalCluster, spark: SparkSession) -> None:
        self.processes = cluster
        self.spark = spark

    @property
    def kafka(self) -> str:
        """Addresses of the brokers."""
        return self.processes.bootstrap

    def options(self, topic: str, **more: Any) -> dict[str, str]:
        """Options of a read of a topic."""
        named = {"subscribe": topic} if not {"assign", "subscribePattern"} & more.keys() else {}
        given = {"kafka.bootstrap.servers": self.kafka, **named}
        return given | {name.replace("__", "."): str(value) for name, value in more.items()}

    def load(self, topic: str, *, schema: str | None = None, **more: Any) -> DataFrame:
        """spark.read of a topic."""
        reader = self.spark.read.format("ponor").options(**self.options(topic, **more))
        return (reader if schema is None else reader.schema(schema)).load()

    def rows(self, topic: str, **more: Any) -> list[KafkaRow]:
        """All rows with headers."""
        return spark_rows(self.load(topic, includeHeaders=True, **more).collect())

    def stream(self, topic: str, **more: Any) -> DataFrame:
        """spark.readStream of a topic, by default from the earliest offset."""
        chosen = {"startingOffsets": "earliest", **more}
        return self.spark.readStream.format("ponor").options(**self.options(topic, **chosen)).load()

    def snapshot(self, topic: str) -> Snapshot:
        """Open a snapshot of the objects' current content; release its lease."""
        options = parse_options(self.options(topic), streaming=False)
        snapshot = open_snapshot(options)
        close_snapshot(snapshot, options)
        return snapshot

    def until_in_objects(self, topic: str) -> None:
        """Wait until everything produced is committed."""
        wanted = {partition: end for partition, (_, end) in ends(self.kafka, topic).items()}
        deadline = time.monotonic() + WAIT_S
        while True:
            found = {each.partition: each.committed_end_offset for each in self.snapshot(topic).partitions}
            if all(found[partition] >= end for partition, end in wanted.items()):
                return
            assert time.monotonic() < deadline, f"{topic}: committed {found}, produced {wanted}"
            time.sleep(0.1)

    def same_as_a_consumer(self, topic: str, **more: Any) -> list[KafkaRow]:
        """Check that Spark's rows equal those of a consumer."""
        self.until_in_objects(topic)
        rows = self.rows(topic, **more)
        assert rows == consumed(self.kafka, topic)
        return rows


@contextmanager
def topics_cluster(
    directory: Path, spark: SparkSession, settings: Mapping[str, str] | None = None, *arguments: str
) -> Iterator[TopicsCluster]:
    """Run a cluster for the duration of the block."""
    words = ["--brokers", str(BROKERS), "--compactors", "1", *arguments]
    with LocalCluster(
        directory, settings={**SMALL_LOGS, **SETTINGS, **(settings or {})}, arguments=words
    ) as cluster:
        yield TopicsCluster(cluster, spark)
