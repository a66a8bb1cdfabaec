"""Three controller processes whose leaders are killed, paused and asked to transfer leadership,
under metadata and produce load.

PONOR_KILLS sets the number of killed leaders (default 50).
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.producers import CLIENT_FAMILIES
from tests.e2e.load.quorum import (
    describe,
    judge_puts,
    kill_leader,
    leader,
    metadata_load,
    shown,
)
from tests.e2e.load.register_history import judge_linearizable
from tests.e2e.load.steady import steady_load
from tests.e2e.scenarios import create_topic, read_and_judge

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("PONOR_KILLS", "50"))
TRANSFERS = 10
PARTITIONS = 8
RATE_BYTES = 1e6


def test_fifty_killed_leaders_lose_and_duplicate_nothing(tmp_path: Path) -> None:
    chance = random.Random(5)
    kills: list[int] = []
    with LocalCluster(tmp_path, arguments=["--controllers", "3"]) as cluster:
        create_topic(cluster, "load", PARTITIONS)
        with (
            steady_load(
                cluster, "load", partitions=PARTITIONS, producers=2, rate_bytes=RATE_BYTES, seed=5
            ) as load,
            metadata_load(cluster, clients=4, seed=5) as history,
        ):
            for _ in range(KILLS):
                restarts = {
                    row["id"]: row["restarts"]
                    for row in cluster.describe()["processes"]
                    if row["role"] == "controller"
                }
                number, at_ns = kill_leader(cluster)
                kills.append(at_ns)
                cluster.wait_serving("controller", number, after_restarts=restarts[number] + 1)
                time.sleep(chance.uniform(0.5, 2.0))
        gaps = [history.gap_s(at_ns) for at_ns in kills]
        print(f"{KILLS} leaders killed: writable again after {shown(gaps)}; {len(history.calls)} calls")
        print(" ".join(f"{gap:.2f}" for gap in gaps))
        judge_puts(history)
        judge_linearizable(history.calls)
        read_and_judge(cluster, "load", PARTITIONS, load.acknowledged, CLIENT_FAMILIES[:1])


def test_leadership_is_transferred_without_an_election_timeout(tmp_path: Path) -> None:
    moments: list[int] = []
    with LocalCluster(tmp_path, arguments=["--controllers", "3"]) as cluster:
        with metadata_load(cluster, clients=4, seed=6) as history:
            for _ in range(TRANSFERS):
                before = describe(cluster)
                moments.append(time.monotonic_ns())
                cluster.run("cluster", "quorum", "transfer")
                assert describe(cluster)["leader"] != before["leader"]
                time.sleep(1.0)
        outages = [history.outage_s(at_ns) for at_ns in moments]
        print(f"{TRANSFERS} transfers: nothing was written for {shown(outages)}")
        judge_puts(history)
        judge_linearizable(history.calls)


def test_a_leader_paused_for_five_seconds_answers_no_stale_read(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, arguments=["--controllers", "3"]) as cluster:
        with metadata_load(cluster, clients=6, seed=7) as history:
            for _ in range(3):
                time.sleep(2.0)
                stopped = leader(cluster)
                os.kill(stopped["pid"], signal.SIGSTOP)
                time.sleep(5.0)
                os.kill(stopped["pid"], signal.SIGCONT)
                time.sleep(2.0)
                assert describe(cluster)["leader"] != stopped["node_id"]
        judge_puts(history)
        judge_linearizable(history.calls)
        print(f"{len(history.calls)} calls are linearizable")


def test_all_three_machines_are_replaced_one_by_one_under_load(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, arguments=["--controllers", "3"]) as cluster:
        create_topic(cluster, "load", PARTITIONS)
        old = [row["node_id"] for row in describe(cluster)["members"]]
        with (
            steady_load(
                cluster, "load", partitions=PARTITIONS, producers=2, rate_bytes=RATE_BYTES, seed=8
            ) as load,
            metadata_load(cluster, clients=4, seed=8) as history,
        ):
            for node_id in old:
                cluster.run("node", "add", "controller")
                newest = max(describe(cluster)["members"], key=lambda row: int(row["node_id"]))
                assert newest["status"] == "learner"
                cluster.run("cluster", "quorum", "promote", str(newest["node_id"]))
                cluster.run("cluster", "quorum", "remove", str(node_id))
                number = next(
                    row["id"] for row in cluster.describe()["processes"] if row["node_id"] == node_id
                )
                cluster.run("node", "remove", "controller", str(number))
        members = describe(cluster)["members"]
        assert len(members) == 3
        assert not {row["node_id"] for row in members} & set(old)
        judge_puts(history)
        judge_linearizable(history.calls)
        read_and_judge(cluster, "load", PARTITIONS, load.acknowledged, CLIENT_FAMILIES[:1])
