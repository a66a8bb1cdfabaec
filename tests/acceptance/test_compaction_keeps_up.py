"""Compaction under a steady load with short retention: backlog and bucket size level off, producers
are hardly slower, bytes are written about twice.

PONOR_STEADY_MINUTES (3; the promise is for 20) of produce to PONOR_STEADY_PARTITIONS (100; 1000) at
half of the producer's maximum, at most 20 MB/s for a thousand partitions, on the store PONOR_STORE
(directory or s3). Compaction runs for the first three fifths, then alternately, so that latencies
of one run are compared. `--basetemp` selects another place for the data.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ponor_metadata.nouns.objects import OBJECTS

from tests.acceptance.bulk import produce_bulk
from tests.acceptance.compaction_cluster import (
    GB,
    MIB,
    calls_by_type,
    cluster_on,
    cpu_s,
    image_of,
    metadata_of,
    usd_of,
)
from tests.e2e.load.cluster import LocalCluster
from tests.e2e.load.paced import Paced, paced
from tests.e2e.load.quorum import percentile
from tests.e2e.load.steady import spawn_pool
from tests.e2e.scenarios import create_topic
from tests.e2e.stores import store_for_test

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

MINUTES = float(os.environ.get("PONOR_STEADY_MINUTES", "3"))
PARTITIONS = int(os.environ.get("PONOR_STEADY_PARTITIONS", "100"))
STORE = os.environ.get("PONOR_STORE", "directory")
SCALE = PARTITIONS / 1000
RATE_BYTES_MAX = 20e6 * SCALE
LEVELLING_SHARE = 0.6
PAIRS = 4
SETTLING_S = 3.0
"""Pause after compaction was switched, because a process starts or ends."""
SAMPLE_S = 5.0
PROBES = 2
PROBE_BYTES, PROBE_BYTES_PER_S = 500, 50e3
PROMISED_MINUTES = 15.0
"""The promises are checked from this duration on. Shorter runs do not level off."""
LEVEL_FACTOR = 1.25
P99_FACTOR, P99_ALLOWANCE_MS = 1.2, 1.0
WRITE_AMPLIFICATION_MAX = 2.2
RANGE_BYTES_MAX = 12.0
CONFIGS = ("segment.bytes=1048576", "retention.bytes=2097152")
SETTINGS = {
    "destroy_delay_ms": 10_000,
    "compactor_source_bytes_max": max(64 * MIB, int(1024 * MIB * SCALE)),
    "compactor_poll_interval_ms_max": 2_000,
}


@dataclass(slots=True)
class Levels:
    """Periodic samples: committed and destroyed bytes, and the compaction backlog."""

    seconds: list[float] = field(default_factory=list)
    bucket_bytes: list[int] = field(default_factory=list)
    backlog_bytes: list[float] = field(default_factory=list)

    def look(self, cluster: LocalCluster, began: float) -> None:
        """Add a sample."""
        image = image_of(cluster)
        self.seconds.append(time.monotonic() - began)
        self.bucket_bytes.append(sum(row.size_bytes for row in image[OBJECTS]))
        self.backlog_bytes.append(cluster.metric("controller", "ponor_compaction_backlog_bytes", {}))

    def growth(self, values: list[int] | list[float]) -> float:
        """Ratio of the largest value of the last third to that of the second third."""
        third = max(1, len(values) // 3)
        return max(values[-third:]) / max(1, *values[-2 * third : -third])


def test_compaction_keeps_up_with_a_steady_load(tmp_path: Path) -> None:
    with (
        store_for_test(STORE, tmp_path) as store,
        cluster_on(store, tmp_path / "ponor", SETTINGS, "--compactors", "1") as cluster,
    ):
        words = [word for config in CONFIGS for word in ("--config", config)]
        cluster.run("topic", "create", "steady", "--partitions", str(PARTITIONS), *words)
        create_topic(cluster, "probe", PROBES)
        maximum = _maximum(cluster)
        rate = min(RATE_BYTES_MAX, maximum / 2)
        levelling_s, phase_s = (
            60 * MINUTES * LEVELLING_SHARE,
            60 * MINUTES * (1 - LEVELLING_SHARE) / PAIRS / 2,
        )
        with _steady(cluster, rate), ExitStack() as stack:
            probes = [stack.enter_context(_probe(cluster, tmp_path, number)) for number in range(PROBES)]
            levels, costs = _level(cluster, rate, levelling_s)
            settled = metadata_of(image_of(cluster))
            phases = _in_turns(cluster, phase_s)
        off, on = (_p99_ms(probes, [each for each in phases if each[0] is state]) for state in (False, True))
    produced = costs["produced"]
    # Copies within the store are not metered, so the replaced bytes are the bound.
    again = costs["replaced"] if costs["calls multipart_copy"] else costs["compacted"]
    amplification = (costs["written"] + again) / produced
    calls = {name[6:]: int(value) for name, value in costs.items() if name.startswith("calls ")}
    shown = ", ".join(f"{name} {count * GB / produced:.0f}" for name, count in sorted(calls.items()) if count)
    bucket, backlog = levels.growth(levels.bucket_bytes), levels.growth(levels.backlog_bytes)
    print(
        f"\n| {MINUTES:g} min, {PARTITIONS} partitions, {rate / 1e6:.1f} MB/s of {maximum / 1e6:.0f},"
        f" {STORE} store | bucket {max(levels.bucket_bytes) / 1e6:.0f} MB at most, last third x{bucket:.2f}"
        f" | backlog {max(levels.backlog_bytes) / 1e6:.0f} MB at most, x{backlog:.2f} | p99 off {off:.2f}"
        f" ms, on {on:.2f} ms"
        f" | write amplification {amplification:.2f} | {settled.compacted_range_bytes:.1f} B per range of a"
        " compacted set object"
        f" | calls/GB {shown}; {1e3 * usd_of(calls) * GB / produced:.1f} m$/GB | compactor"
        f" {costs['compactor cpu_s'] * GB / produced:.2f} CPU s/GB produced |"
    )
    print("bucket MB:", [round(value / 1e6) for value in levels.bucket_bytes])
    assert settled.compacted_range_bytes <= RANGE_BYTES_MAX
    if MINUTES >= PROMISED_MINUTES:
        assert amplification <= WRITE_AMPLIFICATION_MAX
        assert costs["compacted"] > 0
        assert bucket <= LEVEL_FACTOR
        assert backlog <= LEVEL_FACTOR
        assert on <= P99_FACTOR * off + P99_ALLOWANCE_MS


def _maximum(cluster: LocalCluster) -> float:
    """Maximum bytes per second of the producer."""
    total_bytes = int(max(50e6, 400e6 * SCALE))
    with spawn_pool(1) as pool:
        for _ in range(2):  # the first one is the warm-up
            began = time.monotonic()
            work = pool.submit(
                produce_bulk, cluster.bootstrap, "steady", partitions=PARTITIONS, total_bytes=total_bytes
            )
            work.result()
    return total_bytes / (time.monotonic() - began)


@contextmanager
def _steady(cluster: LocalCluster, rate: float) -> Iterator[None]:
    """Half a minute longer than the test needs: the test ends the producer."""
    with spawn_pool(1) as pool:
        total_bytes = int(rate * (60 * MINUTES + 2 * PAIRS * 4 * SETTLING_S + 30))
        work = pool.submit(
            produce_bulk,
            cluster.bootstrap,
            "steady",
            partitions=PARTITIONS,
            total_bytes=total_bytes,
            rate_bytes=rate,
        )
        yield
        work.result()


@contextmanager
def _probe(cluster: LocalCluster, tmp_path: Path, number: int) -> Iterator[Paced]:
    with paced(
        "librdkafka",
        tmp_path / "loads",
        bootstrap=cluster.bootstrap,
        topic="probe",
        partition=number,
        record_bytes=PROBE_BYTES,
        rate_bytes=PROBE_BYTES_PER_S,
        properties={"linger.ms": "0"},
    ) as running:
        yield running


def _level(cluster: LocalCluster, rate: float, seconds: float) -> tuple[Levels, dict[str, float]]:
    """Run with compaction for this long; return the resources of all but the first third, in which
    earlier data is still uploaded.
    """
    levels, before, began = Levels(), _paid(cluster, rate), time.monotonic()
    while time.monotonic() < began + seconds:
        if time.monotonic() < began + seconds / 3:
            before = _paid(cluster, rate)
        levels.look(cluster, began)
        time.sleep(SAMPLE_S)
    after = _paid(cluster, rate)
    return levels, {name: after[name] - before[name] for name in after}


def _paid(cluster: LocalCluster, rate: float) -> dict[str, float]:
    """Bytes produced (by the rate), written by the broker, written and replaced by the compactor;
    calls by type, CPU.
    """
    paid: dict[str, float] = {
        "produced": rate * time.monotonic(),
        "written": cluster.metric("broker", "ponor_object_store_bytes_total", {"direction": "write"}),
        "compacted": cluster.metric("compactor", "ponor_compactor_written_bytes_total", {}),
        "replaced": cluster.metric("compactor", "ponor_compactor_replaced_bytes_total", {}),
        "compactor cpu_s": cpu_s(cluster, "compactor"),
    }
    for role in ("broker", "compactor", "gc"):
        for name, count in calls_by_type(cluster, role).items():
            paid[f"calls {name}"] = paid.get(f"calls {name}", 0.0) + count
    return paid


def _in_turns(cluster: LocalCluster, seconds: float) -> list[tuple[bool, int, int]]:
    """Compaction off and on, off and on; return (whether it was on, from, until) in ns of the
    monotonic clock.
    """
    phases: list[tuple[bool, int, int]] = []
    for _ in range(PAIRS):
        for state in (False, True):
            cluster.run("node", "start" if state else "stop", "compactor", "0")
            time.sleep(SETTLING_S)
            began_ns = time.monotonic_ns()
            time.sleep(seconds)
            phases.append((state, began_ns, time.monotonic_ns()))
    return phases


def _p99_ms(probes: list[Paced], phases: list[tuple[bool, int, int]]) -> float:
    latencies = [
        (each.acknowledged_ns - each.sent_ns) / 1e6
        for probe in probes
        for each in probe.acknowledgements
        if any(begin <= each.sent_ns < end for _, begin, end in phases)
    ]
    return percentile(latencies, 0.99)
