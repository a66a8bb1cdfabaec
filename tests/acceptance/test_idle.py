"""An idle cluster costs almost nothing: no request to the store, no growth of a log, hardly any
CPU. PONOR_IDLE_MINUTES shortens the test.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import psutil
import pytest
from confluent_kafka import Producer

from tests.e2e.load.cluster import LocalCluster
from tests.e2e.scenarios import create_topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

MINUTES: Final = float(os.environ.get("PONOR_IDLE_MINUTES", "10"))
SETTLE_S: Final = 150.0
"""Two upload intervals, and the garbage collection after them."""
TOPICS: Final = 10
PARTITIONS: Final = 100
CPU_PERCENT_MAX: Final = 1.0
SOON_DONE: Final = {
    "compaction_settle_ms": 1_000,
    "compaction_patience_ms": 30_000,
    "destroy_delay_ms": 5_000,
}
"""Ends all consequences of the few written records before the measurement: compaction would
otherwise start after five minutes, and GC after ten more."""


@pytest.mark.parametrize("wal", ["file", "object"])
def test_ten_idle_minutes_with_a_thousand_partitions(tmp_path: Path, wal: str) -> None:
    with LocalCluster(tmp_path, arguments=["--wal", wal, "--compactors", "1"], settings=SOON_DONE) as cluster:
        for number in range(TOPICS):
            create_topic(cluster, f"idle-{number}", PARTITIONS)
        _write_a_little(cluster)
        time.sleep(SETTLE_S)
        before = _state(cluster)
        began = time.monotonic()
        time.sleep(60 * MINUTES)
        seconds = time.monotonic() - began
        after = _state(cluster)
        percents = {
            name: 100 * (after[name] - before[name]) / seconds for name in before if name.endswith(" cpu_s")
        }
        print(f"\n{MINUTES:g} idle minutes, {TOPICS * PARTITIONS:,} partitions: % CPU {percents}")
        for name in before:
            if not name.endswith(" cpu_s"):
                assert after[name] == before[name], f"{name}: {before[name]:,} before, {after[name]:,} after"
        assert max(percents.values()) < CPU_PERCENT_MAX


def _write_a_little(cluster: LocalCluster) -> None:
    """Write one record to every partition."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(TOPICS):
        for partition in range(PARTITIONS):
            producer.produce(f"idle-{number}", b"value", partition=partition)
    assert producer.flush(60) == 0


def _state(cluster: LocalCluster) -> dict[str, float]:
    """Requests to the store, bytes written to logs, CPU, by process."""
    state: dict[str, float] = {}
    for entry in cluster.describe()["processes"]:
        role = entry["role"]
        times = psutil.Process(entry["pid"]).cpu_times()
        state[f"{role} cpu_s"] = times.user + times.system
        if entry.get("metrics_url"):
            state[f"{role} store requests"] = cluster.metric(role, "ponor_object_store_requests_total", {})
            state[f"{role} journal bytes"] = cluster.metric(role, "ponor_journal_bytes_total", {})
        if entry.get("log_file"):
            state[f"{role} log file"] = Path(entry["log_file"]).stat().st_size
    data = cluster.directory / "data"
    state["bytes on disk"] = sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
    return state
