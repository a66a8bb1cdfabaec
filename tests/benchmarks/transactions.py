"""`make bench-transactions`: transactions of the Java client on Ponor and on a real Apache Kafka 4.3.1,
alternating in one run.

Each transaction has one record of 100 bytes for each of ten partitions. A read_committed consumer reads
them. Ponor runs once with its log in a file and once with its log in the object store. `classic` is a client
without transactions v2 (3.9.1), which adds partitions itself. Each system has one core; the clients have the
other.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks.frames import create_topic
from tests.benchmarks.report import Report
from tests.benchmarks.subject import GENERATOR_CORE, Subject, kafka_subject, ponor_subject
from tests.tools.java_programs import java_program_command

PARTITIONS: Final = 10
PRODUCERS: Final = (1, 32)
CLIENTS: Final = {"v2": "4.3.1", "classic": "3.9.1"}
PROMISE: Final = 1.0
"""Commits per second of Ponor with its log in a file / Kafka's."""
_TOPIC_NUMBERS: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class Figures:
    """One measurement.

    `commit`: commitTransaction. `transaction`: from begin to end. `visible`: from send to the consumer.
    """

    commits_per_s: float
    cpu_ms_per_commit: float
    commit_p50_ms: float
    commit_p99_ms: float
    transaction_p50_ms: float
    transaction_p99_ms: float
    visible_p50_ms: float
    visible_p99_ms: float


class Load:
    """A running TransactionLoad on one topic."""

    def __init__(self, subject: Subject, process: subprocess.Popen[str]) -> None:
        self._subject = subject
        self._process = process

    def measure(self, producers: int, seconds: float) -> Figures:
        """Run `producers` producers for some seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        before_s = self._subject.cpu_seconds()
        self._process.stdin.write(f"{producers} {seconds}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the load on {self._subject.name} ended with {self._process.wait()}"
        cpu_s = self._subject.cpu_seconds() - before_s
        elapsed_s, commits, *latencies_us = (float(word) for word in line.split())
        return Figures(commits / elapsed_s, cpu_s * 1e3 / commits, *(value / 1e3 for value in latencies_us))


@contextmanager
def running_load(subject: Subject, version: str) -> Iterator[Load]:
    """Start the clients on a new topic."""
    topic = f"transactions-{next(_TOPIC_NUMBERS)}"
    create_topic(subject.bootstrap, topic, PARTITIONS, dict(subject.topic_configs()))
    command = java_program_command("TransactionLoad", version, subject.bootstrap, topic, str(PARTITIONS))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Load(subject, process)
        finally:
            process.kill()


def main() -> None:
    """Measure all systems, print the table, and save the report."""
    parser = argparse.ArgumentParser(prog="make bench-transactions")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument(
        "--warm-seconds", type=float, default=60.0, help="per system, client and number of producers"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ponor-bench-")))
        object_log = ["--wal", "object"]
        subjects: list[Subject] = [
            stack.enter_context(ponor_subject(directory / "file", name="ponor, file WAL")),
            stack.enter_context(
                ponor_subject(directory / "object", name="ponor, object WAL", arguments=object_log)
            ),
            stack.enter_context(kafka_subject(directory / "kafka")),
        ]
        os.sched_setaffinity(0, {GENERATOR_CORE} & os.sched_getaffinity(0) or os.sched_getaffinity(0))
        results = {
            f"{generation}, {producers} producers": _measured(subjects, version, producers, options)
            for generation, version in CLIENTS.items()
            for producers in PRODUCERS
        }
    for name, rounds in results.items():
        _print(name, rounds)
    extras = {
        name: {who: [asdict(one) for one in all_of] for who, all_of in rounds.items()}
        for name, rounds in results.items()
    }
    print(f"kept as {Report(extras={'transactions': extras}).keep(Path('build/bench'))}")


def _measured(
    subjects: Sequence[Subject], version: str, producers: int, options: argparse.Namespace
) -> dict[str, list[Figures]]:
    """Measure one load on all systems, after a warm-up, in alternating order."""
    measured: dict[str, list[Figures]] = {subject.name: [] for subject in subjects}
    with ExitStack() as stack:
        loads = [(subject.name, stack.enter_context(running_load(subject, version))) for subject in subjects]
        for name, load in loads:
            _say(f"warming {name}: client {version}, {producers} producers")
            load.measure(producers, options.warm_seconds)
        for number in range(options.rounds):
            for name, load in loads if number % 2 == 0 else reversed(loads):
                _say(
                    f"client {version}, {producers} producers: round {number + 1} of {options.rounds}, {name}"
                )
                measured[name].append(load.measure(producers, options.seconds))
    return measured


def _print(name: str, rounds: dict[str, list[Figures]]) -> None:
    print(
        f"{name:24} {'commits/s':>10} {'CPU ms':>8} {'commit p50':>11} {'p99 ms':>8}"
        f" {'begin-end p50':>14} {'p99 ms':>8} {'visible p50':>12} {'p99 ms':>8}   commits/s least-greatest"
    )
    medians = {who: _medians(all_of) for who, all_of in rounds.items()}
    for who, of in medians.items():
        rates = [one.commits_per_s for one in rounds[who]]
        print(
            f"  {who:22} {of.commits_per_s:10.1f} {of.cpu_ms_per_commit:8.2f} {of.commit_p50_ms:11.2f}"
            f" {of.commit_p99_ms:8.2f} {of.transaction_p50_ms:14.2f} {of.transaction_p99_ms:8.2f}"
            f" {of.visible_p50_ms:12.2f} {of.visible_p99_ms:8.2f}   {min(rates):.1f}-{max(rates):.1f}"
        )
    *ours, kafka = medians.values()
    ratios = [one.commits_per_s / kafka.commits_per_s for one in ours]
    cpu = [one.cpu_ms_per_commit / kafka.cpu_ms_per_commit for one in ours]
    kept = "kept" if ratios[0] >= PROMISE else "NOT KEPT"
    print(
        f"  commits/s ponor / kafka: file WAL {ratios[0]:.2f}x (>= {PROMISE:g}x: {kept}),"
        f" object WAL {ratios[1]:.2f}x; CPU per commit {cpu[0]:.2f}x, {cpu[1]:.2f}x"
    )


def _medians(rounds: Sequence[Figures]) -> Figures:
    columns = [asdict(one) for one in rounds]
    return Figures(**{name: statistics.median(column[name] for column in columns) for name in columns[0]})


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    main()
