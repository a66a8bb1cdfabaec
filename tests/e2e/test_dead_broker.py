"""A broker with its log on a local disk is lost: `ponor broker recover` replaces it, with its log and
without."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from ponor_cli.clients.cluster_address import find_cluster
from ponor_cli.clients.image_reader import image_of
from ponor_metadata.nouns.nodes import NODES
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OPEN_AT
from ponor_metadata.nouns.topics import PARTITIONS as PARTITIONS_TABLE
from ponor_metadata.nouns.topics import PARTITIONS_LED_BY, TOPICS
from ponor_runtime.identity import NodeId

from tests.e2e.load.cluster import LocalCluster, ponor
from tests.e2e.load.judge import Acknowledged
from tests.e2e.load.producers import CLIENT_FAMILIES
from tests.e2e.load.readers import read_all
from tests.e2e.load.steady import steady_load
from tests.e2e.scenarios import create_topic, read_and_judge

PARTITIONS = 4
RECORDS = 400
RATE_BYTES = 200e3
TWO_BROKERS = ["--brokers", "2", "--no-restart"]
NO_UPLOAD = {"upload_interval_ms": 86_400_000}
"""Keeps acknowledged records in the logs."""


def recover(cluster: LocalCluster, node_id: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [ponor(), "broker", "recover", str(node_id), *words, "--data", str(cluster.directory / "data")]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_recovery_with_the_log_loses_nothing(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, arguments=TWO_BROKERS, settings=NO_UPLOAD) as cluster:
        node_id, wal = _filled(cluster, tmp_path)
        alive = recover(cluster, node_id, "--wal", str(wal))
        assert alive.returncode == 1
        assert "is not dead" in alive.stderr
        without = recover(cluster, node_id)
        assert without.returncode == 1
        assert "--accept-loss" in without.stderr
        acknowledged = _produce(cluster)
        cluster.kill("broker", 1)
        done = recover(cluster, node_id, "--wal", str(wal), "-o", "json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["recovered"]["records"] > 0
        assert (report["open_ends"], report["partitions_left"]) == ([], 0)
        _is_rid_of(cluster, node_id)
        read_and_judge(cluster, "load", PARTITIONS, acknowledged, CLIENT_FAMILIES[:1])
        # The node itself returns later with the same disk, as a new node.
        cluster.run("node", "start", "broker", "1")
        cluster.wait_serving("broker", 1)


def test_recovery_without_the_log_reports_the_accepted_loss(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, arguments=TWO_BROKERS, settings=NO_UPLOAD) as cluster:
        node_id, wal = _filled(cluster, tmp_path)
        acknowledged = _produce(cluster)
        led = {row.partition for row in _led(cluster, node_id)}
        cluster.kill("broker", 1)
        for file in wal.iterdir():
            file.unlink() if file.is_file() else shutil.rmtree(file)
        refused = recover(cluster, node_id, "--wal", str(wal))
        assert refused.returncode == 1
        assert "is empty" in refused.stderr
        done = recover(cluster, node_id, "--accept-loss")
        assert done.returncode == 0, done.stderr
        assert "THE WRITE-AHEAD LOG WAS NOT USED" in done.stdout
        assert "LOST, if acknowledged" in done.stdout
        told = {tuple(line.split()[:3]) for line in done.stdout.splitlines()}
        assert told >= {("load", str(partition), "log") for partition in led}, done.stdout
        _is_rid_of(cluster, node_id)
        seen = read_all(CLIENT_FAMILIES[0], cluster.bootstrap, "load", PARTITIONS)
        assert 0 < seen.count < len(acknowledged.places), (
            "only the partitions of the lost broker may have lost records"
        )
        _produce(cluster)


def _filled(cluster: LocalCluster, directory: Path) -> tuple[int, Path]:
    """Return node id and log of the second broker, which leads partitions."""
    create_topic(cluster, "load", PARTITIONS)
    node_id = int(cluster.process("broker", 1)["node_id"])
    assert _led(cluster, node_id)
    return node_id, directory / "data" / "broker-1" / "wal"


def _produce(cluster: LocalCluster) -> Acknowledged:
    with steady_load(
        cluster, "load", partitions=PARTITIONS, producers=1, rate_bytes=RATE_BYTES, seed=7
    ) as load:
        load.goes_on(RECORDS)
    return load.acknowledged


def _led(cluster: LocalCluster, node_id: int) -> list[Any]:
    """Partitions of the load that the node leads, without those of the groups topic."""
    image = image_of(find_cluster(cluster.directory / "data", None))
    (topic,) = (row for row in image[TOPICS] if row.name == "load")
    rows = image[PARTITIONS_TABLE].find(PARTITIONS_LED_BY, NodeId(node_id))
    return [row for row in rows if row.topic_id == topic.topic_id]


def _is_rid_of(cluster: LocalCluster, node_id: int) -> None:
    image = image_of(find_cluster(cluster.directory / "data", None))
    assert not image[PARTITIONS_TABLE].find(PARTITIONS_LED_BY, NodeId(node_id))
    assert not image[STREAMS].find(STREAMS_OPEN_AT, NodeId(node_id))
    node = image[NODES].get(NodeId(node_id))
    assert node is not None
    assert node.fenced
