"""`make bench`: our own figures, honestly: CPU seconds per GB of the broker process before MB/s, medians of several runs.

Figures are absolute and of this machine; ratios beside Apache Kafka in one run come with the next step of the roadmap. Durability is on: every
produce is synced to the write-ahead log before it is answered, and uploaded to the directory store meanwhile.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from tests.benchmarks.raw_client import (
    check_fetch,
    check_produce,
    fetch_frame,
    metadata_frame,
    partitions_of,
    produce_frame,
    run_load,
)
from tests.e2e.load.cluster import LocalCluster

ROUNDS = 3
SECONDS = 5.0
PARTITIONS = 16
KIB = 1024


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table: medians over the rounds, with the spread of the first column."""

    name: str
    requests_per_s: float
    mb_per_s: float
    cpu_s_per_gb: float | None
    cpu_us_per_request: float
    p50_ms: float
    p99_ms: float
    spread: str


@dataclass(frozen=True, slots=True)
class Case:
    """One measured load."""

    name: str
    frames: Callable[[], list[bytes]]
    depth: int
    payload_bytes: int
    rate: float | None = None


def cases() -> list[Case]:
    """Produce in four sizes, fetch in two, metadata."""

    def produce(batch: int, record: int, connections: int) -> Callable[[], list[bytes]]:
        return lambda: [
            produce_frame("bench", n % PARTITIONS, batch, record, f"p{n}") for n in range(connections)
        ]

    def fetch(size: int) -> Callable[[], list[bytes]]:
        return lambda: [fetch_frame("bench", n, 0, size, f"f{n}") for n in range(4)]

    return [
        Case("produce 100 B, 16 connections, depth 1", produce(100, 100, 16), 1, 100),
        Case("produce 100 B, 4 connections, depth 16", produce(100, 100, 4), 16, 100),
        Case("produce 100 B, open loop 1,000/s", produce(100, 100, 16), 1, 100, rate=1000),
        Case("produce 16 KiB, 4 connections, depth 4", produce(16 * KIB, KIB, 4), 4, 16 * KIB),
        Case("produce 64 KiB, 4 connections, depth 4", produce(64 * KIB, KIB, 4), 4, 64 * KIB),
        Case("fetch hot 64 KiB, 4 connections", fetch(64 * KIB), 1, 64 * KIB),
        Case("fetch hot 1 MiB, 4 connections", fetch(1024 * KIB), 1, 1024 * KIB),
        Case("metadata of 16 partitions, 4 connections", lambda: [metadata_frame("bench", "m")] * 4, 1, 0),
    ]


def measure(cluster: LocalCluster, case: Case) -> Figure:
    """Several rounds of one case, after a short warm-up."""
    broker = psutil.Process(cluster.process("broker")["pid"])
    frames = case.frames()
    run_load(cluster.bootstrap, frames, depth=case.depth, seconds=1.0, rate=case.rate)
    rounds = []
    for _ in range(ROUNDS):
        before = sum(broker.cpu_times()[:2])
        result = run_load(cluster.bootstrap, frames, depth=case.depth, seconds=SECONDS, rate=case.rate)
        cpu = sum(broker.cpu_times()[:2]) - before
        moved = result.requests * case.payload_bytes
        rounds.append(
            (
                result.requests / result.seconds,
                moved / result.seconds / 1e6,
                cpu / (moved / 1e9) if moved else None,
                1e6 * cpu / result.requests,
                result.percentile(0.5),
                result.percentile(0.99),
            )
        )
    columns = list(zip(*rounds, strict=True))
    per_s, mb_per_s, per_gb, per_request, p50, p99 = [_median(column) for column in columns]
    spread = f"{min(row[0] for row in rounds):,.0f}-{max(row[0] for row in rounds):,.0f}"
    return Figure(case.name, per_s or 0, mb_per_s or 0, per_gb, per_request or 0, p50 or 0, p99 or 0, spread)


def _median(column: Sequence[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    return statistics.median(known) if known else None


def print_table(figures: list[Figure]) -> None:
    """For people."""
    print(
        f"{'load':44} {'req/s':>9} {'MB/s':>8} {'CPU s/GB':>9} {'CPU us/req':>10} {'p50 ms':>8} {'p99 ms':>8}  req/s of rounds"
    )
    for row in figures:
        per_gb = "-" if row.cpu_s_per_gb is None else f"{row.cpu_s_per_gb:.2f}"
        print(
            f"{row.name:44} {row.requests_per_s:9,.0f} {row.mb_per_s:8.1f} {per_gb:>9} {row.cpu_us_per_request:10.1f} "
            f"{row.p50_ms:8.2f} {row.p99_ms:8.2f}  {row.spread}"
        )


def main() -> None:
    """Run every case against a fresh cluster and keep the results as JSON."""
    with (
        tempfile.TemporaryDirectory(prefix="ponor-bench-") as directory,
        LocalCluster(Path(directory)) as cluster,
    ):
        cluster.run("topic", "create", "bench", "--partitions", str(PARTITIONS))
        while partitions_of(cluster.bootstrap, "bench") < PARTITIONS:
            time.sleep(0.05)
        for partition in range(4):
            for _ in range(32):
                check_produce(cluster.bootstrap, produce_frame("bench", partition, 64 * KIB, KIB, "fill"))
            assert check_fetch(cluster.bootstrap, fetch_frame("bench", partition, 0, 1024 * KIB, "check")) > 0
        wanted = sys.argv[1:] or [""]
        chosen = [case for case in cases() if any(word in case.name for word in wanted)]
        # Fetches first: they read what was just filled, while it is hot.
        chosen.sort(key=lambda case: not case.name.startswith("fetch"))
        figures = [measure(cluster, case) for case in chosen]
    print_table(figures)
    target = Path("build/bench")
    target.mkdir(parents=True, exist_ok=True)
    name = target / f"bench-{int(time.time())}.json"
    name.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n")
    print(f"kept as {name}")


if __name__ == "__main__":
    main()
