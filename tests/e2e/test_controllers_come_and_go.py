"""Three controller processes under load: crash, leadership transfer, replacement, restart on other ports,
loss of a majority."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ponor_cli.clients.cluster_address import find_cluster
from ponor_cli.clients.image_reader import image_of
from ponor_metadata.nouns.keys import KEYS

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.producers import CLIENT_FAMILIES
from tests.e2e.load.quorum import MetadataHistory, describe, judge_puts, kill_leader, metadata_load
from tests.e2e.load.register_history import judge_linearizable
from tests.e2e.load.steady import steady_load, wait_for
from tests.e2e.scenarios import create_topic, read_and_judge

PARTITIONS = 4
RATE_BYTES = 100e3
PAUSE_S = 0.02
"""Pause between two operations of a metadata client: about twenty operations race for each key."""
PATIENT = {"session_timeout_ms": 120_000}
"""Metadata clients are not fenced while suspended; the test checks their histories, not their deaths."""
RECORDS = 100
"""Records stored between two events, which shows that everything works again."""


def test_controllers_come_and_go_and_nothing_is_lost(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, arguments=["--controllers", "3"], settings=PATIENT) as cluster:
        create_topic(cluster, "load", PARTITIONS)
        with (
            steady_load(
                cluster, "load", partitions=PARTITIONS, producers=2, rate_bytes=RATE_BYTES, seed=3
            ) as load,
            metadata_load(cluster, clients=3, seed=3, pause_s=PAUSE_S) as history,
        ):
            _the_leader_dies(cluster)
            load.goes_on(RECORDS)
            _leadership_is_handed_over(cluster)
            load.goes_on(RECORDS)
            _a_controller_is_replaced(cluster)
            load.goes_on(RECORDS)
        before = describe(cluster)
        cluster.stop()
        cluster.start()
        _the_same_members_lead_on(before, describe(cluster))
        judge_puts(history)
        judge_linearizable(history.calls)
        _every_key_is_there(cluster, history)
        with metadata_load(cluster, clients=3, seed=4, pause_s=PAUSE_S) as later:
            _leadership_is_handed_over(cluster)
        judge_linearizable(later.calls)
    _one_goes_on_alone(cluster)
    with LocalCluster(tmp_path, arguments=["--controllers", "1"]) as alone:
        incarnation = describe(alone)["incarnation"]
        assert incarnation > 0
        _every_key_is_there(alone, history)
        read_and_judge(alone, "load", PARTITIONS, load.acknowledged, CLIENT_FAMILIES[:1])
        alone.run("cluster", "quorum", "confirm-incarnation", str(incarnation))


def _the_leader_dies(cluster: LocalCluster) -> None:
    number, _ = kill_leader(cluster)
    cluster.wait_serving("controller", number, after_restarts=1)


def _leadership_is_handed_over(cluster: LocalCluster) -> None:
    before = describe(cluster)

    def another_leads() -> bool:
        # A slow controller may lose the leadership and regain it meanwhile.
        cluster.run("cluster", "quorum", "transfer")
        return bool(describe(cluster)["leader"] != before["leader"])

    wait_for(another_leads, "another controller leads")
    assert describe(cluster)["term"] > before["term"]


def _a_controller_is_replaced(cluster: LocalCluster) -> None:
    old = cluster.process("controller", 0)
    cluster.run("node", "add", "controller")
    new = cluster.process("controller", 3)
    status = {row["node_id"]: row["status"] for row in describe(cluster)["members"]}
    assert status[new["node_id"]] == "learner"
    cluster.run("cluster", "quorum", "promote", str(new["node_id"]))
    cluster.run("node", "remove", "controller", "0")
    members = [row["node_id"] for row in describe(cluster)["members"]]
    assert len(members) == 3
    assert new["node_id"] in members
    assert old["node_id"] not in members
    assert [row["id"] for row in cluster.describe()["processes"] if row["role"] == "controller"] == [1, 2, 3]


def _one_goes_on_alone(cluster: LocalCluster) -> None:
    """Stop all controllers and lose two of them permanently.

    All three had the whole log, so nothing is lost.
    """
    words = ["cluster", "quorum", "force-recovery", "--controller", "2", "--accept-loss"]
    assert "FORCED RECOVERY" in cluster.run(*words)


def _the_same_members_lead_on(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Check that a restart keeps the members and starts a later term."""

    def column(quorum: dict[str, Any], *names: str) -> list[list[Any]]:
        return [[row[name] for name in names] for row in quorum["members"]]

    assert column(after, "node_id", "directory_id") == column(before, "node_id", "directory_id")
    assert after["term"] > before["term"]


def _every_key_is_there(cluster: LocalCluster, history: MetadataHistory) -> None:
    image = image_of(find_cluster(cluster.directory / "data", None))
    created = {call.key: call.value for call in history.calls if call.kind == "put" and call.created}
    assert created
    for key, value in created.items():
        row = image[KEYS].get(key)
        assert row is not None, f"{key} is lost"
        assert row.value == value
