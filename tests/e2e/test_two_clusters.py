"""Several clusters on one machine: each draws its own ordinal, and they share a store only with
--share-store."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from ponor_runtime.identity import CLUSTER_ORDINAL_MAX, ClusterOrdinal, compose_node_id

from tests.e2e.load.cluster import LocalCluster, ponor
from tests.e2e.load.producers import Assignment, produce
from tests.e2e.load.readers import read_all
from tests.e2e.scenarios import create_topic
from tests.ports import free_port

pytestmark = pytest.mark.e2e
RECORDS = 500


def refusal(data: Path, *words: str) -> str:
    """Run a `ponor up` that must be refused; return its output."""
    command = [ponor(), "up", "--data", str(data), "--kafka-port", str(free_port()), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def check_serves(cluster: LocalCluster, ordinal: int) -> None:
    """Check that all ids contain this ordinal and that a client can produce and consume."""
    info = json.loads(cluster.run("cluster", "info", "-o", "json"))
    assert info["cluster_ordinal"] == ordinal
    ids = [row["node_id"] for row in (*info["nodes"], *info["processes"])]
    assert {node_id >> 16 for node_id in ids} == {ordinal}
    create_topic(cluster, "t", 1)
    produce("librdkafka", Assignment(cluster.bootstrap, "t", "p", 0, RECORDS, 1))
    assert read_all("librdkafka", cluster.bootstrap, "t", 1).count == RECORDS


def test_second_cluster_shares_a_store_only_on_request(tmp_path: Path) -> None:
    shared = ["--object-store", f"file://{tmp_path / 'shared'}"]
    own = ["--object-store", f"file://{tmp_path / 'own'}"]
    first, second = tmp_path / "first", tmp_path / "second"
    with LocalCluster(first, arguments=shared) as cluster:
        check_serves(cluster, cluster.ordinal)
        assert (first / "data" / "broker-0" / "marker").exists()

        said = refusal(second / "data", *shared)
        assert "the object store holds cluster" in said
        assert "--share-store" in said
        with LocalCluster(second, arguments=own) as retried:
            check_serves(retried, retried.ordinal)
        assert "belongs to the object store" in refusal(second / "data", *shared)
        assert "was formatted with ordinal" in refusal(
            second / "data", *own, "--cluster-ordinal", str(1 + retried.ordinal % CLUSTER_ORDINAL_MAX)
        )

        largest = ["--cluster-ordinal", str(CLUSTER_ORDINAL_MAX), "--brokers", "2", "--wal", "object"]
        third = LocalCluster(tmp_path / "third", arguments=[*shared, *largest, "--share-store"])
        with third:
            check_serves(third, CLUSTER_ORDINAL_MAX)
            for number in (0, 1):
                node_id = compose_node_id(ClusterOrdinal(CLUSTER_ORDINAL_MAX), number)
                third.run("partition", "move", "t", "0", "--to", str(node_id), "--wait")
                (row,) = json.loads(third.run("partition", "list", "t", "-o", "json"))
                assert row["leader"] == node_id
            assert str(node_id) in third.run("node", "list")
        again = LocalCluster(tmp_path / "third", arguments=[*shared, "--brokers", "2", "--wal", "object"])
        with again:
            assert read_all("librdkafka", again.bootstrap, "t", 1).count == RECORDS
        assert read_all("librdkafka", cluster.bootstrap, "t", 1).count == RECORDS
