"""Time until a group of 100 members and 1,000 partitions is settled after a change.

A group is settled when each partition has one owner, no live member owns two partitions more than another,
and nothing changes for a while. The time is that of the last change, from the step that caused it.
"""

from __future__ import annotations

import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from tests.benchmarks.frames import create_topic
from tests.benchmarks.group_members import HEARTBEAT_MS, SESSION_MS
from tests.benchmarks.subject import Subject

PROTOCOLS: Final = ("classic", "cooperative", "consumer")
PARTITIONS: Final = 1_000
TOPIC: Final = "wide"
QUIET_S: Final = 1.5
SETTLE_S_MAX: Final = 120.0
PONOR_SETTINGS: Final = {
    "group_consumer_session_timeout_ms": SESSION_MS,
    "group_consumer_heartbeat_interval_ms": HEARTBEAT_MS,
}
KAFKA_SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": 3_000,
    "group.consumer.min.session.timeout.ms": SESSION_MS,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": HEARTBEAT_MS,
    "group.consumer.heartbeat.interval.ms": HEARTBEAT_MS,
}
"""Both systems have the same intervals. Kafka's default intervals would exceed the time that is measured."""
TEAMS: Final = {"stays": 40, "static": 10, "late": 30, "leaves": 10, "dies": 10}
"""Members by their part in the run, each in a process of its own."""


class Team:
    """A process of members."""

    def __init__(self, process: subprocess.Popen[str], names: Sequence[str]) -> None:
        self.names = names
        self._process = process

    def take(self, step: str) -> None:
        """Start a step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()
        self._process.wait()


class Group:
    """The teams of one group, and what their members own."""

    def __init__(self) -> None:
        self._reports: queue.Queue[str] = queue.Queue()
        self._owned: dict[str, frozenset[int]] = {}
        self._changed_ns = 0

    def listen(self, process: subprocess.Popen[str]) -> None:
        """Read the reports of a process until it ends."""
        assert process.stdout is not None
        for line in process.stdout:
            self._reports.put(line)

    def settle_s(self, live: Sequence[str], what: str, trigger: Callable[[], None]) -> float:
        """Cause a change, and wait until the live members are settled; return the seconds."""
        began_ns = time.monotonic_ns()
        trigger()
        quiet_ns = int(QUIET_S * 1e9)
        while True:
            self._read(0.1)
            since_ns = max(self._changed_ns, began_ns)
            if time.monotonic_ns() - since_ns > quiet_ns and self._is_settled(live):
                return (since_ns - began_ns) / 1e9
            if time.monotonic_ns() - began_ns > SETTLE_S_MAX * 1e9:
                counts = sorted(len(self._owned.get(name, ())) for name in live)
                raise AssertionError(f"{what}: not settled; partitions of the members: {counts}")

    def _read(self, timeout_s: float) -> None:
        try:
            line = self._reports.get(timeout=timeout_s)
            while True:
                name, at_ns, owned = line.rstrip("\n").split(" ")
                self._owned[name] = frozenset(map(int, filter(None, owned.split(","))))
                self._changed_ns = max(self._changed_ns, int(at_ns))
                line = self._reports.get_nowait()
        except queue.Empty:
            pass

    def _is_settled(self, live: Sequence[str]) -> bool:
        shares = [self._owned.get(name, frozenset()) for name in live]
        counts = [len(share) for share in shares]
        is_complete = sum(counts) == PARTITIONS and len(frozenset().union(*shares)) == PARTITIONS
        return is_complete and max(counts) - min(counts) <= 1


@contextmanager
def _teams(group: Group, bootstrap: str, group_id: str, protocol: str) -> Iterator[Mapping[str, Team]]:
    with ExitStack() as stack:
        teams: dict[str, Team] = {}
        processes: list[subprocess.Popen[str]] = []
        for part, count in TEAMS.items():
            names = [f"{part}-{number}" for number in range(count)]
            words = [bootstrap, TOPIC, group_id, protocol, "static" if part == "static" else "dynamic"]
            command = [sys.executable, "-m", "tests.benchmarks.group_members", *words, *names]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            teams[part] = Team(process, names)
            stack.callback(teams[part].kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            threading.Thread(target=group.listen, args=(process,), daemon=True).start()
        yield teams


def measure(subject: Subject, group_id: str, protocol: str) -> dict[str, float]:
    """Run all steps of one group; return the seconds of each, and the CPU seconds of the system."""
    group = Group()
    before_s = subject.cpu_seconds()
    with _teams(group, subject.bootstrap, group_id, protocol) as teams:
        live: list[str] = []

        def settle(
            what: str, gained: Sequence[str], lost: Sequence[str], trigger: Callable[[], None]
        ) -> None:
            live.extend(name for part in gained for name in teams[part].names)
            for name in (name for part in lost for name in teams[part].names):
                live.remove(name)
            figures[what] = group.settle_s(live, f"{subject.name}, {protocol}: {what}", trigger)

        def join(*parts: str) -> Callable[[], None]:
            def trigger() -> None:
                for part in parts:
                    teams[part].take("join")

            return trigger

        figures: dict[str, float] = {}
        settle("50 join an empty group", ["stays", "static"], [], join("stays", "static"))
        settle("50 more join", ["late", "leaves", "dies"], [], join("late", "leaves", "dies"))
        settle("10 static members restart", [], [], lambda: teams["static"].take("restart"))
        settle("10 leave", [], ["leaves"], lambda: teams["leaves"].take("leave"))
        settle(f"10 die (sessions of {SESSION_MS / 1000:g} s)", [], ["dies"], teams["dies"].kill)
        figures["CPU s of the system"] = subject.cpu_seconds() - before_s
    return figures


def prepare(subject: Subject) -> None:
    """Create the topic."""
    create_topic(subject.bootstrap, TOPIC, PARTITIONS, dict(subject.topic_configs()))


def print_settling(protocol: str, rounds: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Print medians of all steps, their spread, and the ratio that is promised to be at most 1."""
    ours, theirs = rounds.values()
    print(f"{protocol + ', seconds':40} {'ponor':>8} {'kafka':>8} {'ratio':>7}   least-greatest")
    for what in ours[0]:
        columns = [[one[what] for one in all_of] for all_of in (ours, theirs)]
        medians = [statistics.median(column) for column in columns]
        spread = ", ".join(f"{min(column):.2f}-{max(column):.2f}" for column in columns)
        ratio = medians[0] / medians[1] if medians[1] else float("nan")
        print(f"  {what:38} {medians[0]:8.2f} {medians[1]:8.2f} {ratio:6.2f}x   {spread}")
