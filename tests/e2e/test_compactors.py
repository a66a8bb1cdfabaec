"""Compactor processes: a topic is compacted while clients produce and read, and while compactors are killed,
added and removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.producers import CLIENT_FAMILIES
from tests.e2e.load.steady import steady_load, wait_for
from tests.e2e.scenarios import create_topic, read_and_judge

PARTITIONS = 4
RATE_BYTES = 100e3
RECORDS = 200
EAGER = {
    "upload_interval_ms": "200",
    "compaction_settle_ms": "0",
    "compaction_patience_ms": "500",
    "compaction_fan_in": "2",
    "compaction_survey_interval_ms": "200",
    "compactor_split_size_bytes": "20000",
    "compactor_lease_ttl_ms": "3000",
    "compactor_poll_interval_ms_max": "300",
    "destroy_delay_ms": "120000",
}


@pytest.mark.e2e
@pytest.mark.timeout(1_800)
def test_topic_is_compacted_under_load(tmp_path: Path) -> None:
    arguments = ["--compactors", "1"]
    for name, value in EAGER.items():
        arguments += ["--set", f"{name}={value}"]
    with LocalCluster(tmp_path, arguments=arguments) as cluster:
        create_topic(cluster, "load", PARTITIONS)
        with steady_load(
            cluster, "load", partitions=PARTITIONS, producers=1, rate_bytes=RATE_BYTES, seed=7
        ) as load:
            load.goes_on(RECORDS)
            wait_for(lambda: _done(cluster, 0) >= 1, "the compactor has replaced something")
            before = cluster.process("compactor")["restarts"]
            cluster.kill("compactor")
            load.goes_on(RECORDS)
            cluster.wait_serving("compactor", after_restarts=before + 1)
            cluster.run("node", "add", "compactor")
            cluster.run("node", "remove", "compactor", "0")
            load.goes_on(RECORDS)
            wait_for(lambda: _done(cluster, 1) >= 1, "the added compactor has finished a task")
        read_and_judge(cluster, "load", PARTITIONS, load.acknowledged, CLIENT_FAMILIES[:1])
        uploads = cluster.metric("broker", "ponor_upload_objects_total", {"kind": "sso"})
        wait_for(
            lambda: _pieces_max(cluster) * 3 <= uploads,
            f"{uploads:.0f} uploads are compacted into few pieces",
        )
        print(cluster.run("object", "map", "load"))
        wait_for(lambda: "done after" in cluster.log("compactor", 1), "the compactor's log shows it")
        wait_for(lambda: "█" in cluster.run("object", "map", "load"), "streams have objects of their own")
        assert "are sound" in cluster.run("object", "verify")
        cluster.stop()
        cluster.start()
        read_and_judge(cluster, "load", PARTITIONS, load.acknowledged, CLIENT_FAMILIES[1:2])


def _done(cluster: LocalCluster, number: int) -> float:
    return cluster.metric("compactor", "ponor_compactor_tasks_total", {"outcome": "done"}, number)


def _pieces_max(cluster: LocalCluster) -> int:
    drawn: dict[str, Any] = json.loads(cluster.run("object", "map", "load", "-o", "json"))
    return int(drawn["totals"]["pieces_per_stream_max"])
