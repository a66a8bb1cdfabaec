"""`python -m tools.spark_demo [--records N] [--keep]`: a cluster, a topic, Spark, a profile and a picture, in
about a minute.

The cluster uses a temporary directory and free ports. Java need not be installed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import ponor_spark
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from ponor_cli.clients.cluster_address import ClusterAddress
from ponor_cli.clients.image_reader import image_of
from ponor_cli.local.cluster_file import ClusterFile
from ponor_spark.java import prepare
from ponor_spark.jobs.profile.picture import draw
from ponor_spark.jobs.profile.report import print_profile
from ponor_spark.jobs.profile.topic_profile import TopicProfile, profile
from rich.console import Console

from tools.demo.__main__ import running_cluster
from tools.demo.holdings import holdings_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT: Final = Path(__file__).resolve().parents[2]
OUTPUT: Final = ROOT / "build" / "demo"
TOPIC: Final = "journeys"
PARTITIONS: Final = 6
RECORDS_DEFAULT: Final = 120_000
LINES: Final = ("U6", "S1", "M10", "T3", "N8")
DAY_MS: Final = 86_400_000
STREAM_S_MAX: Final = 90
WIDTH: Final = 140
"""Output width if standard output is not a terminal."""
UPLOAD_S_MAX: Final = 60
STREAM_LIMIT: Final = 40_000
"""Records per micro-batch, small enough for several batches."""


def main() -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(prog="make spark-demo", description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS_DEFAULT)
    parser.add_argument("--keep", action="store_true", help="keep the cluster's directory")
    arguments = parser.parse_args()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    directory = Path(tempfile.mkdtemp(prefix="ponor-spark-demo-"))
    try:
        with running_cluster(directory) as cluster:
            console.print(
                "[bold]1[/] A fresh cluster: controller, broker, gc, compactor; Kafka clients at"
                f" {cluster.bootstrap}"
            )
            began = time.monotonic()
            write(cluster.bootstrap, arguments.records)
            console.print(
                f"[bold]2[/] {arguments.records:,} records of one day written with librdkafka in"
                f" {time.monotonic() - began:.0f} s, waiting until they are in objects"
            )
            await_uploads(cluster, arguments.records)
            with_spark(console, cluster, directory, arguments.records)
    finally:
        if arguments.keep:
            console.print(
                f"kept: {directory}; `ponor up --data {directory / 'data'}` starts the cluster again"
            )
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return 0


def write(bootstrap: str, records: int) -> None:
    """Write one day of journeys with morning and evening peaks and uneven lines, compressed with lz4."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, config={"retention.ms": "-1"})
    admin.create_topics([topic])[TOPIC].result(30)
    producer: Any = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": "lz4",
            "linger.ms": 20,
            "enable.idempotence": True,
        }
    )
    chance = random.Random(7)  # noqa: S311 - reproducible test data, not a secret
    midnight_ms = int(time.time() * 1000) // DAY_MS * DAY_MS - DAY_MS
    failures: list[Any] = []
    for moment_ms in sorted(_moment(chance) for _ in range(records)):
        line = LINES[min(int(chance.expovariate(0.9)), len(LINES) - 1)]
        vehicle = f"{line}/{chance.randrange(400)}"
        value = f'{{"line":"{line}","vehicle":"{vehicle}","delay_s":{int(chance.gauss(40, 60))},"seats":{chance.randrange(180)}}}'  # noqa: E501
        while True:
            try:
                producer.produce(
                    TOPIC, value.encode(), vehicle.encode(), timestamp=midnight_ms + moment_ms,
                    on_delivery=lambda error, _: failures.append(error) if error else None,
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(60) or failures:
        raise SystemExit(f"records were not written: {failures[:1]}")


def _moment(chance: random.Random) -> int:
    """Draw a time of day in ms."""
    hour = chance.choice((chance.gauss(8, 1.2), chance.gauss(17.5, 1.8), chance.uniform(5, 23.9)))
    return int(min(max(hour, 0.0), 23.99) * 3_600_000)


def await_uploads(cluster: ClusterFile, records: int) -> None:
    """Wait until every record is in a committed object, because Spark reads only objects."""
    address = ClusterAddress(cluster.bootstrap, cluster.controllers, cluster.object_store)
    deadline = time.monotonic() + UPLOAD_S_MAX
    while True:
        held = holdings_of(image_of(address), TOPIC, PARTITIONS)
        if sum(held.end_of(partition) for partition in range(PARTITIONS)) >= records:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"the records were not uploaded within {UPLOAD_S_MAX} s")
        time.sleep(0.3)


def with_spark(console: Console, cluster: ClusterFile, directory: Path, records: int) -> None:
    """Run a batch query, a range query and a stream, then print the profile."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    runtime = prepare()
    spark = session()
    console.print(
        f"[bold]3[/] Spark {spark.version} on Java {runtime.version} ({runtime.origin}), two cores of this"
        " machine"
    )
    ponor_spark.register(spark)
    options = {"controllers": ",".join(cluster.controllers), "subscribe": TOPIC}
    began = time.monotonic()
    counted = table(spark, options).count()
    check("spark.read counts", counted, records)
    console.print(f"    spark.read: {counted:,} rows in {time.monotonic() - began:.1f} s, first query")
    bound = records // PARTITIONS // 10
    began = time.monotonic()
    tenth = table(spark, {**options, "pushdown": "on"}).where(f"offset < {bound}").count()
    console.print(f"    where offset < {bound:,}: {tenth:,} rows in {time.monotonic() - began:.1f} s")
    stream(console, spark, options, directory, records)
    began = time.monotonic()
    found = profile(table(spark, options), TOPIC)
    console.print(f"[bold]4[/] The profile, in {time.monotonic() - began:.1f} s:\n")
    check("the profile counts", found.records, records)
    print_profile(found, console)
    keep_picture(console, found)
    spark.stop()


def table(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """Load the topic's current contents; call it for each query (docs/operations/spark.md, "Pushdown of
    where()").
    """
    return spark.read.format("ponor").options(**options).load()


def session() -> SparkSession:
    """Create a quiet local[2] session."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("ponor spark demo")
    for name, value in (
        ("spark.driver.bindAddress", "127.0.0.1"),
        ("spark.driver.host", "127.0.0.1"),
        ("spark.log.level", "ERROR"),
        ("spark.sql.python.filterPushdown.enabled", "true"),
        ("spark.sql.session.timeZone", "UTC"),
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.ui.enabled", "false"),
        ("spark.ui.showConsoleProgress", "false"),
    ):
        builder = builder.config(name, value)
    return builder.getOrCreate()


def stream(
    console: Console, spark: SparkSession, options: dict[str, str], directory: Path, records: int
) -> None:
    """Read all records again as a stream of several micro-batches."""
    sizes: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        sizes.append(batch.count())

    began = time.monotonic()
    read = spark.readStream.format("ponor").options(**options).option("startingOffsets", "earliest")
    query = (
        read.option("maxOffsetsPerTrigger", STREAM_LIMIT)
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        if not query.awaitTermination(STREAM_S_MAX):
            raise SystemExit(f"the stream did not end within {STREAM_S_MAX} s")
    finally:
        query.stop()
    check("spark.readStream counts", sum(sizes), records)
    told = ", ".join(f"{size:,}" for size in sizes)
    console.print(
        f"    spark.readStream, at most {STREAM_LIMIT:,} a batch: {told} rows in"
        f" {time.monotonic() - began:.1f} s"
    )


def keep_picture(console: Console, found: TopicProfile) -> None:
    """Write the picture to build/demo."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    path = OUTPUT / "topic-profile.png"
    draw(found, path)
    console.print(f"\nPicture: {path.relative_to(ROOT)}")


def check(what: str, found: int, expected: int) -> None:
    """Exit with a message if the counts differ."""
    if found != expected:
        raise SystemExit(f"{what} {found:,} rows, {expected:,} were written")


if __name__ == "__main__":
    sys.exit(main())
