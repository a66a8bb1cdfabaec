"""Load reports: differences between two readings, the busiest partitions first, no reports without
traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ponor.controller.v1.session_service_pb2 import LoadReport
from ponor_broker.load_report import PARTITIONS_MAX, LoadReporter
from ponor_broker.partitions.identity import PartitionId
from ponor_broker.partitions.partition import Partition
from ponor_runtime.system import SystemClock

TOPIC = bytes(16)


class SteppedClock(SystemClock):
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ns(self) -> int:
        return self.now_ms * 1_000_000


@dataclass
class Work:
    """A process with a settable CPU time."""

    used_ns: int = 0
    is_forced: bool = False

    def cpu_ns(self) -> int:
        return self.used_ns

    def loop_times(self) -> None:
        return None

    def postpone_end(self, seconds: float) -> None:
        raise AssertionError("unexpected request for the end")


@dataclass(eq=False)
class Traffic:
    """The counters of a partition."""

    identity: PartitionId
    bytes_in: int = 0
    bytes_out: int = 0


class Watched:
    def __init__(self, partitions: int = 2) -> None:
        self.clock, self.work = SteppedClock(), Work()
        self.requests = 0
        self.traffic = [Traffic(PartitionId(TOPIC, "t", index)) for index in range(partitions)]
        self.sent: list[LoadReport] = []
        self.reporter = LoadReporter(
            self.clock,
            self.work,
            interval_ms=1_000,
            partitions=lambda: cast("list[Partition]", self.traffic),
            requests=lambda: self.requests,
            send=self.sent.append,
        )

    def look(self, after_ms: int = 1_000) -> LoadReport | None:
        before = len(self.sent)
        self.clock.now_ms += after_ms
        self.reporter.look()
        return self.sent[-1] if len(self.sent) > before else None


def test_rates_are_means_of_the_window() -> None:
    watched = Watched()
    watched.traffic[0].bytes_in += 1_000
    watched.traffic[1].bytes_out += 9_000
    watched.requests, watched.work.used_ns = 50, 1_000_000_000
    report = watched.look(after_ms=2_000)
    assert report is not None
    assert report.window_ms == 2_000
    assert [(each.partition, each.in_bytes_per_s, each.out_bytes_per_s) for each in report.partitions] == [
        (1, 0, 4_500),
        (0, 500, 0),
    ]
    assert (report.in_bytes_per_s, report.out_bytes_per_s) == (500, 4_500)
    assert (report.requests_per_s, report.cpu_permille) == (25, 500)


def test_no_report_without_traffic_and_one_when_it_ends() -> None:
    watched = Watched()
    assert watched.look() is None
    watched.traffic[0].bytes_in += 1
    assert watched.look() is not None
    end = watched.look()
    assert end is not None
    assert (end.in_bytes_per_s, end.out_bytes_per_s, len(end.partitions)) == (0, 0, 0)
    assert watched.look() is None


def test_a_reopened_partition_counts_from_zero() -> None:
    watched = Watched(partitions=1)
    watched.traffic[0].bytes_in = 5_000
    watched.look()
    watched.traffic[0] = Traffic(PartitionId(TOPIC, "t", 0), bytes_in=100)
    report = watched.look()
    assert report is not None
    assert report.in_bytes_per_s == 100


def test_partitions_beyond_the_bound_count_in_the_totals_only() -> None:
    watched = Watched(partitions=PARTITIONS_MAX + 10)
    for index, each in enumerate(watched.traffic):
        each.bytes_in = index + 1
    report = watched.look()
    assert report is not None
    assert len(report.partitions) == PARTITIONS_MAX
    assert report.partitions[0].in_bytes_per_s == PARTITIONS_MAX + 10
    assert report.in_bytes_per_s == sum(range(1, PARTITIONS_MAX + 11))
    assert report.ByteSize() < 256 * 1024
