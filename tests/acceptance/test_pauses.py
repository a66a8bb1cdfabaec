"""Processes of every kind are paused by SIGSTOP under load: no running broker is fenced because
another process was paused, and nothing acknowledged is lost.

PONOR_PAUSES sets the number of pauses (default 100), PONOR_PAUSE_S_MAX the longest one (default 40 s).
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.producers import CLIENT_FAMILIES
from tests.e2e.load.steady import steady_load, wait_for
from tests.e2e.scenarios import create_topic, read_and_judge
from tests.integration.seaweed_server import SeaweedServer

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(4 * 3600)]

PAUSES = int(os.environ.get("PONOR_PAUSES", "100"))
PAUSE_S_MAX = float(os.environ.get("PONOR_PAUSE_S_MAX", "40"))
PAUSE_S_MIN = 5.0
SETTLED_S = 20.0
"""Wait after each pause, in which a resumed process would act on its absence."""
PARTITIONS = 6
RATE_BYTES = 5e5
ARGUMENTS = ("--controllers", "3", "--brokers", "3", "--compactors", "1", "--wal", "object")


def processes(cluster: LocalCluster) -> list[dict[str, Any]]:
    return list(cluster.describe()["processes"])


def broker_restarts(cluster: LocalCluster) -> dict[int, int]:
    return {row["id"]: row["restarts"] for row in processes(cluster) if row["role"] == "broker"}


def pause(process: dict[str, Any], seconds: float) -> None:
    os.kill(process["pid"], signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(process["pid"], signal.SIGCONT)


def test_no_running_broker_is_fenced_because_another_process_was_paused(tmp_path: Path) -> None:
    chance = random.Random(39)
    fenced: list[str] = []
    with SeaweedServer(tmp_path / "s3") as store:
        arguments = [*ARGUMENTS, "--object-store", store.url("ponor")]
        with LocalCluster(tmp_path / "ponor", arguments=arguments, environment=store.environment) as cluster:
            create_topic(cluster, "load", PARTITIONS)
            roles = sorted({row["role"] for row in processes(cluster)})
            with steady_load(
                cluster, "load", partitions=PARTITIONS, producers=2, rate_bytes=RATE_BYTES, seed=39
            ) as load:
                for turn in range(PAUSES):
                    role = roles[turn % len(roles)]
                    chosen = chance.choice([row for row in processes(cluster) if row["role"] == role])
                    before = broker_restarts(cluster)
                    seconds = chance.uniform(PAUSE_S_MIN, PAUSE_S_MAX)
                    pause(chosen, seconds)
                    time.sleep(SETTLED_S)
                    wait_for(
                        lambda: all(row["state"] == "serving" for row in processes(cluster)), "all serve"
                    )
                    after = broker_restarts(cluster)
                    print(f"pause {turn}: {role} {chosen['id']} for {seconds:.1f} s: {before} -> {after}")
                    fenced.extend(
                        f"broker {number}, while {role} {chosen['id']} was paused for {seconds:.1f} s"
                        for number in after
                        if after[number] != before[number] and (role, chosen["id"]) != ("broker", number)
                    )
            assert not fenced
            read_and_judge(cluster, "load", PARTITIONS, load.acknowledged, CLIENT_FAMILIES[:1])
