"""Errors are one line with the option (or the lease) and the remedy, raised by load() or planning,
before executors start.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ponor_spark import register
from ponor_spark.lease_notes import LEASES_VARIABLE
from ponor_spark.offsets import batch_ranges
from ponor_spark.options import parse_options
from ponor_spark.planning import plan
from ponor_spark.pushdown import PushedFilters
from ponor_spark.snapshot_opening import close_snapshot, open_snapshot
from pyspark.errors import PySparkException

from tests.integration.seaweed_server import SeaweedServer
from tests.spark.kafka_rows import WAIT_S, assorted, consumed, create_topic, produce
from tests.spark.topics_cluster import TopicsCluster, topics_cluster

pytestmark = pytest.mark.timeout(900)
LEASE_S = 10
"""Renewed after a third of it, so that pauses of driver or controller of some seconds do not end it."""


@pytest.fixture(scope="module")
def small(topics: TopicsCluster) -> str:
    create_topic(topics.kafka, "small")
    produce(topics.kafka, "small", assorted(30, 1, seed=1))
    topics.until_in_objects("small")
    return "small"


def said(error: pytest.ExceptionInfo[PySparkException]) -> str:
    """The line of our error: the last one that begins with the class's name."""
    lines = [line for line in str(error.value).splitlines() if "ponor_spark.errors." in line]
    assert lines, str(error.value)
    return lines[-1].partition(": ")[2]


BAD = {
    "startingOffset": ("earliest", "startingoffset: there is no such option; remove it"),
    "startingOffsets": ("latest", "startingOffsets: a batch that begins at the latest"),
    "endingOffsets": (
        '{"small": {"0": 31}}',
        "failOnDataLoss: small 0 ends at 30, below the requested offset 31",
    ),
    "endingTimestamp": ("soon", "endingTimestamp: 'soon' is not an integer"),
    "columns": ("key,volume", "columns: there is no column volume; write some of key, value"),
    "tail": ("all", "tail: 'all' is not a valid value; write one of committed, broker"),
    "failOnDataLoss": ("maybe", "failOnDataLoss: 'maybe' is neither true nor false"),
    "subscribe": ("missing", "subscribe: there is no topic missing; correct the name, or create it"),
    "assign": ('{"small": [3]}', "assign: topic small has no partition 3; it has 0 to 0"),
    "kafka.bootstrap.servers": ("127.0.0.1:1", "kafka.bootstrap.servers"),
    "controllers": ("127.0.0.1:1", "controllers: no answer from 127.0.0.1:1"),
    "fs.s3a.secret.key": ("x", "fs.s3a.secret.key: credentials are never options"),
}


@pytest.mark.parametrize("option", BAD)
def test_an_invalid_option_is_named_with_a_remedy(topics: TopicsCluster, small: str, option: str) -> None:
    value, line = BAD[option]
    given = topics.options(small)
    if option == "assign":
        del given["subscribe"]
    with pytest.raises(PySparkException) as error:
        topics.spark.read.format("ponor").options(**{**given, option: value}).load().count()
    assert said(error).startswith(line)


def test_options_of_the_other_kind_of_read_are_named(
    topics: TopicsCluster, small: str, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException) as error:
        topics.load(small, maxOffsetsPerTrigger=5).count()
    assert said(error).startswith(
        "maxOffsetsPerTrigger: a batch query has no triggers; remove it, or use spark.readStream"
    )
    writer = topics.stream(small, endingOffsets="latest").writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    with pytest.raises(PySparkException) as error:
        query.awaitTermination(600)
    assert said(error).startswith("endingOffsets: a stream has no end; remove it, or use spark.read")


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ("value string", "schema: column value is binary, not string; the columns are key binary"),
        ("value binary, size int", "schema: there is no column size; the columns are key binary"),
    ],
)
def test_an_invalid_schema_is_named(topics: TopicsCluster, small: str, schema: str, line: str) -> None:
    with pytest.raises(PySparkException) as error:
        topics.load(small, schema=schema).count()
    assert said(error).startswith(line)


@contextmanager
def environment(topics: TopicsCluster, **changes: str) -> Iterator[None]:
    """Other environment variables for Spark's Python workers, which take those of the time of
    registration.
    """
    variables: dict[str, str] = topics.spark.sparkContext.environment
    before = dict(variables)
    register(topics.spark)
    variables.update(changes)
    _register_as_it_is(topics)
    try:
        yield
    finally:
        variables.clear()
        variables.update(before)
        register(topics.spark)


def _register_as_it_is(topics: TopicsCluster) -> None:
    from ponor_spark.source import PonorDataSource

    topics.spark.dataSource.register(PonorDataSource)


def objects_of(topics: TopicsCluster) -> list[Path]:
    return list((topics.processes.directory / "data").rglob("*.object"))


def test_missing_objects_raise_an_error_and_never_a_short_result(
    topics: TopicsCluster, tmp_path: Path
) -> None:
    """A separate cluster, because a lease keeps the objects of all topics and other tests have leases."""
    with topics_cluster(tmp_path, topics.spark) as cluster:
        with environment(cluster, **{LEASES_VARIABLE: ""}):
            _lease_is_over(cluster)
        _object_is_deleted(cluster)


def _lease_is_over(cluster: TopicsCluster) -> None:
    """A driver that renews nothing and waits too long: compaction and garbage collection delete the
    objects.
    """
    create_topic(cluster.kafka, "leased")
    for seed in range(4):
        produce(cluster.kafka, "leased", assorted(30, 1, seed=seed))
        cluster.until_in_objects("leased")
    frame = cluster.load("leased", snapshotTtl="1s")
    line = ""
    deadline = time.monotonic() + WAIT_S
    while not line:
        produce(cluster.kafka, "leased", assorted(30, 1, seed=9))
        try:
            assert frame.count() == 120
        except PySparkException as error:
            line = str(error)
        assert time.monotonic() < deadline, "the objects of the snapshot are never deleted"
        time.sleep(0.5)
    assert "SnapshotExpiredError: snapshot lease" in line
    assert "is gone; load the DataFrame again, and set the option snapshotTtl" in line
    cluster.same_as_a_consumer("leased")


def _object_is_deleted(cluster: TopicsCluster) -> None:
    """Another process deletes the object while the lease is valid."""
    frame = cluster.load("leased")
    assert frame.count() > 120
    for path in objects_of(cluster):
        path.unlink()
    with pytest.raises(PySparkException, match=r"snapshot lease \d+ is over: object \S+ is gone"):
        frame.count()


def test_a_renewed_lease_outlives_its_duration(topics: TopicsCluster) -> None:
    """The driver renews it: the same objects exist after twice the duration of the lease, despite
    compaction.
    """
    create_topic(topics.kafka, "kept")
    for seed in range(3):
        produce(topics.kafka, "kept", assorted(30, 1, seed=seed))
        topics.until_in_objects("kept")
    frame = topics.load("kept", snapshotTtl=f"{LEASE_S}s")
    over = time.monotonic() + 2 * LEASE_S
    seed = 0
    while time.monotonic() < over:
        seed += 1
        produce(topics.kafka, "kept", assorted(30, 1, seed=seed))
        topics.until_in_objects("kept")
        time.sleep(1)
        assert frame.count() == 90
    topics.same_as_a_consumer("kept")


def test_rows_come_from_s3_and_wrong_credentials_are_named(topics: TopicsCluster, tmp_path: Path) -> None:
    server = SeaweedServer(tmp_path / "s3")
    with server:
        before = {name: os.environ.get(name) for name in server.environment}
        os.environ.update(server.environment)
        try:
            with topics_cluster(
                tmp_path / "cluster", topics.spark, None, "--object-store", server.url("t")
            ) as cluster:
                _read_from_s3(cluster, server)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def _read_from_s3(cluster: TopicsCluster, server: SeaweedServer) -> None:
    create_topic(cluster.kafka, "bucket", 2)
    produce(cluster.kafka, "bucket", assorted(400, 2, seed=1), "zstd")
    with environment(cluster, **server.environment):
        cluster.same_as_a_consumer("bucket")
        seen = [row for row in consumed(cluster.kafka, "bucket") if row.offset >= 150]
        assert cluster.load("bucket").where("offset >= 150").count() == len(seen)
    wrong: dict[str, Any] = {**server.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
    with environment(cluster, **wrong), pytest.raises(PySparkException) as error:
        cluster.load("bucket").count()
    assert "AWS_" in said(error)
    assert "wrong" not in said(error).replace("are wrong", "")
    _executor_has_other_credentials(cluster, wrong)


EXECUTOR = (
    "import pickle, sys; from ponor_spark.split_reading import read_split;"
    " list(read_split(pickle.load(sys.stdin.buffer), ('value',)))"
)


def _executor_has_other_credentials(cluster: TopicsCluster, wrong: Mapping[str, str]) -> None:
    """The driver's rights do not determine those of the executors."""
    options = parse_options(cluster.options("bucket"), streaming=False)
    snapshot = open_snapshot(options)
    split = plan(snapshot, batch_ranges(snapshot, options), PushedFilters(), options)[0]
    close_snapshot(snapshot, options)
    command = [sys.executable, "-c", EXECUTOR]
    done = subprocess.run(
        command, input=pickle.dumps(split), capture_output=True, env={**os.environ, **wrong}, check=False
    )
    line = done.stderr.decode().splitlines()[-1]
    assert line.startswith(
        "ponor_spark.errors.ClusterUnreachableError: the object store refuses an executor:"
    )
    assert line.endswith(
        "credentials come from the executors' environment (AWS_*, or their role), never from options"
    )
    assert "wrong" not in line
