"""`make bench-spark`: our source and Spark's own Kafka connector on the same records and pyspark, alternating
(A B C D A B C D).

    python -m tests.benchmarks.spark [--rounds N] [--records-100b N] [--records-1kb N]
        [--partitions N] [--compactors N] [--warm N]

The connector reads the topics from Apache Kafka and also from Ponor's broker. Our source reads the
objects of Ponor's topics on a real S3 server, with checksums of blocks and batches, with the full and
with a pruned schema. Wall time covers a whole query including planning. CPU is that of the whole
Spark process tree, plus the broker's for the connector; the object server's is shown separately.
PONOR_SMALL in the environment selects a trial of three minutes without meaningful results. With fewer
records than the defaults, the fixed cost of a query (a third of a second) weighs more: ratios of
ranges become smaller, those of full scans hardly change.

The benchmark checks that our scans do not use the brokers: no byte at their Kafka port and no CPU
beyond their idle rate, and every query is repeated with the broker stopped. The exit code is 1 if
this, or any answer, was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from tests.benchmarks.report import Report
from tests.benchmarks.spark_queries import queries
from tests.benchmarks.spark_rounds import Bench, Contender
from tests.benchmarks.spark_side import Reader, spark_side
from tests.benchmarks.spark_table import OURS, OURS_PRUNED, THEIRS, THEIRS_FROM_PONOR, SparkTable
from tests.benchmarks.spark_topics import TopicSpec, await_uploads, fill, start_ms
from tests.benchmarks.subject import KAFKA_JVM_FLAGS
from tests.e2e.load.cluster import LocalCluster
from tests.integration.seaweed_server import SeaweedServer
from tests.peers.artifacts import KAFKA, SPARK_CONNECTOR, PeerMissingError
from tests.peers.kafka_peer import KafkaPeer

RESULTS: Final = Path("build/bench")
SMALL: Final = "PONOR_SMALL"
CLUSTER_SETTINGS: Final = {"upload_interval_ms": 5_000}
"""Uploads the topic soon after it is filled; other settings have their defaults."""


def main() -> int:
    """Run the benchmark."""
    options = _options()
    began_s = time.monotonic()
    begin_ms = start_ms()
    specs = [
        TopicSpec("bench-100b", options.records_100b, 100, options.partitions, begin_ms),
        TopicSpec("bench-1kb", options.records_1kb, 1_000, options.partitions, begin_ms),
    ]
    with ExitStack() as stack:
        bench = _started(stack, options, specs)
        bench.warm(specs, options.warm)
        rows = [
            row for spec in specs for query in queries() for row in bench.rows(spec, query, options.rounds)
        ]
        bench.without_brokers(specs)
    table = SparkTable(rows)
    print(table.markdown())
    given = {name: str(value) for name, value in vars(options).items()}
    minutes = (time.monotonic() - began_s) / 60
    found = {**table.values(), "options": given, "complaints": bench.complaints, "minutes": minutes}
    print(f"\n{minutes:.0f} minutes; kept as {Report(extras={'spark': found}).keep(RESULTS)}")
    for complaint in bench.complaints:
        print(f"WRONG: {complaint}")
    if not bench.complaints:
        print(
            "brokers: 0 bytes and no CPU beyond idleness during our scans; the same answers while the broker"
            " was stopped"
        )
    return 1 if bench.complaints else 0


def _started(stack: ExitStack, options: argparse.Namespace, specs: list[TopicSpec]) -> Bench:
    """Both clusters with uploaded topics, and both Spark sessions."""
    try:
        for libraries in (KAFKA, SPARK_CONNECTOR):
            libraries.fetch()
    except PeerMissingError as error:
        raise SystemExit(f"there is nothing to compare with: {error}") from error
    directory = Path(
        stack.enter_context(tempfile.TemporaryDirectory(prefix="ponor-bench-", dir=options.directory))
    )
    store = stack.enter_context(SeaweedServer(directory / "s3"))
    arguments = ["--object-store", store.url("bench"), "--compactors", str(options.compactors)]
    cluster = stack.enter_context(
        LocalCluster(
            directory / "ponor", settings=CLUSTER_SETTINGS, arguments=arguments, environment=store.environment
        )
    )
    kafka = stack.enter_context(KafkaPeer(directory / "kafka", jvm_flags=KAFKA_JVM_FLAGS))
    for spec in specs:
        _say(f"writing {spec.label} twice")
        fill(kafka.bootstrap, spec)
        fill(cluster.bootstrap, spec)
    _say("waiting for the uploads")
    for spec in specs:
        await_uploads(cluster, spec)
    _say("starting Spark twice")
    class_path = {"spark.driver.extraClassPath": SPARK_CONNECTOR.class_path}
    connector = stack.enter_context(spark_side("connector", class_path, {}))
    ponor = stack.enter_context(spark_side("ponor", {}, store.environment))
    pids = tuple(int(entry["pid"]) for entry in cluster.describe()["processes"] if entry["role"] == "broker")
    ours = partial(_ponor_reader, _controllers(cluster), store.url("bench"))
    contenders = (
        Contender(THEIRS, connector, partial(_kafka_reader, kafka.bootstrap), (kafka.pid,)),
        Contender(THEIRS_FROM_PONOR, connector, partial(_kafka_reader, cluster.bootstrap), pids),
        Contender(OURS, ponor, ours, pids),
        Contender(OURS_PRUNED, ponor, ours, pids),
    )
    return Bench(contenders, cluster, store.pid, _say)


def _kafka_reader(bootstrap: str, topic: str) -> Reader:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    return Reader("kafka", {**options, "startingOffsets": "earliest", "endingOffsets": "latest"})


def _ponor_reader(controllers: str, store: str, topic: str) -> Reader:
    """Controllers instead of brokers, so that no request goes to a broker. Pushdown may be on:
    every query has its own load() and at most one filter.
    """
    options = {"controllers": controllers, "store": store, "subscribe": topic, "pushdown": "on"}
    return Reader(
        "ponor", {**options, "startingOffsets": "earliest", "endingOffsets": "latest"}, can_prune=True
    )


def _controllers(cluster: LocalCluster) -> str:
    return ",".join(cluster.describe()["controllers"])


def _options() -> argparse.Namespace:
    small = bool(os.environ.get(SMALL))
    parser = argparse.ArgumentParser(prog="make bench-spark", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=1 if small else 5, help="per query and contender")
    parser.add_argument("--warm", type=int, default=1, help="passes over all queries before")
    parser.add_argument("--records-100b", type=int, default=60_000 if small else 4_000_000)
    parser.add_argument("--records-1kb", type=int, default=20_000 if small else 600_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument(
        "--compactors", type=int, default=0, help="of Ponor, while topics are written and read"
    )
    parser.add_argument(
        "--directory", type=Path, help="where both clusters and the S3 server keep their data"
    )
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
