"""Rounds of the comparison with Spark's Kafka connector: one query of one contender at a time, with
all resources measured.

The order is A B C D A B C D. All answers must be equal, and our source must not use Ponor's broker.
Violations are recorded and fail the run at its end, because a run takes half an hour.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import psutil

from tests.benchmarks.spark_queries import Answer, Query, queries
from tests.benchmarks.spark_side import Measured, Reader, SparkSide
from tests.benchmarks.spark_table import OURS, OURS_PRUNED, Round, Row
from tests.benchmarks.spark_topics import TopicSpec
from tests.e2e.load.cluster import LocalCluster

IDLE_S: Final = 10.0
IDLE_SLACK: Final = 0.02
"""Share of the wall time that a broker may use beyond its own idle rate."""
TICK_S: Final = 0.01
"""Unit of the kernel's CPU counters."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Contender:
    """One contender: its side, how it reads a topic, and the brokers that it uses."""

    name: str
    side: SparkSide
    reader: Callable[[str], Reader]
    broker_pids: tuple[int, ...]

    @property
    def is_ours(self) -> bool:
        """Whether brokers must not be used."""
        return self.name in {OURS, OURS_PRUNED}


@dataclass(slots=True)
class Bench:
    """Running processes, and violations found."""

    contenders: Sequence[Contender]
    cluster: LocalCluster
    store_pid: int
    say: Say
    complaints: list[str] = field(default_factory=list)
    _idle_rate: float = 0.0
    _answers: dict[tuple[str, str], Answer] = field(default_factory=dict)

    def warm(self, specs: Sequence[TopicSpec], passes: int) -> None:
        """Run every query of every contender to warm compilers, caches and Python workers."""
        self._measure_idle()
        for spec in specs:
            for contender in self.contenders:
                self.say(f"warming {contender.name}, {spec.label}")
                for query in queries() * passes:
                    self._round(spec, query, contender)

    def rows(self, spec: TopicSpec, query: Query, rounds: int) -> list[Row]:
        """Run all contenders in turn, `rounds` times. A failed one has no row."""
        measured: dict[str, list[Round]] = {each.name: [] for each in self.contenders}
        for number in range(rounds):
            for contender in self.contenders:
                self.say(f"{spec.label}, {query.name}: round {number + 1} of {rounds}, {contender.name}")
                found = self._round(spec, query, contender)
                if found is not None:
                    measured[contender.name].append(found)
        for contender in self.contenders:
            if contender.is_ours:
                self._check_broker_cpu(query, measured[contender.name])
        return [
            Row(spec.label, spec.record_bytes, query.name, name, tuple(found))
            for name, found in measured.items()
            if len(found) == rounds
        ]

    def without_brokers(self, specs: Sequence[TopicSpec]) -> None:
        """Run every query again with the full schema while Ponor's broker is stopped: the answers
        must be the same, without CPU time of the broker.
        """
        (ours,) = [each for each in self.contenders if each.name == OURS]
        for pid in ours.broker_pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            before_s = cpu_s(ours.broker_pids)
            for spec in specs:
                for query in queries():
                    self.say(f"{spec.label}, {query.name}: with the broker stopped")
                    self._answered(spec, query, ours)
            if cpu_s(ours.broker_pids) != before_s:
                self.complaints.append("a stopped broker used CPU")
        finally:
            for pid in ours.broker_pids:
                os.kill(pid, signal.SIGCONT)

    def _measure_idle(self) -> None:
        """Measure the idle CPU rate of Ponor's broker."""
        (pids,) = {each.broker_pids for each in self.contenders if each.is_ours}
        before_s = cpu_s(pids)
        time.sleep(IDLE_S)
        self._idle_rate = (cpu_s(pids) - before_s) / IDLE_S

    def _round(self, spec: TopicSpec, query: Query, contender: Contender) -> Round | None:
        bytes_before = self._kafka_bytes() if contender.is_ours else 0.0
        brokers_s, store_s = cpu_s(contender.broker_pids), cpu_s((self.store_pid,))
        found = self._answered(spec, query, contender)
        brokers_s, store_s = cpu_s(contender.broker_pids) - brokers_s, cpu_s((self.store_pid,)) - store_s
        if found is None:
            return None
        result = Round(found, brokers_s, store_s)
        if contender.is_ours and (moved_bytes := self._kafka_bytes() - bytes_before):
            self.complaints.append(f"{query.name}: {moved_bytes:.0f} bytes went through a broker")
        return result

    def _answered(self, spec: TopicSpec, query: Query, contender: Contender) -> Measured | None:
        """Return the answer after comparing it with the others; None if there was none."""
        pruned = contender.name == OURS_PRUNED
        try:
            found = contender.side.ask(query.name, contender.reader(spec.name), spec.middle, pruned=pruned)
        except (RuntimeError, OSError) as error:
            self.complaints.append(f"{contender.name}, {spec.label}: {error}")
            return None
        expected = self._answers.setdefault((spec.name, query.name), found.answer)
        if found.answer != expected:
            self.complaints.append(
                f"{contender.name}, {spec.label}, {query.name}: {found.answer}, where the first answer was"
                f" {expected}"
            )
        return found

    def _check_broker_cpu(self, query: Query, rounds: Sequence[Round]) -> None:
        """Checked for all rounds together, because periodic work of a broker may fall into any of them."""
        wall_s = sum(each.measured.wall_s for each in rounds)
        used_s = sum(each.broker_cpu_s for each in rounds)
        explained_s = (self._idle_rate + IDLE_SLACK) * wall_s + 2 * TICK_S * len(rounds)
        if used_s > explained_s:
            self.complaints.append(
                f"{query.name}: the broker used {used_s:.2f} s of CPU in {wall_s:.2f} s, idleness explains"
                f" {explained_s:.2f} s"
            )

    def _kafka_bytes(self) -> float:
        return self.cluster.metric("broker", "ponor_kafka_bytes_total", {})


def cpu_s(pids: Sequence[int]) -> float:
    """User and system time of these processes."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(each.user + each.system for each in times))
