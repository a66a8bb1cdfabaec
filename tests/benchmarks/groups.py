"""`make bench-groups`: groups on Ponor and on a real Apache Kafka 4.3.1, alternating in one run.

Settling: 100 consumers of librdkafka and 1,000 partitions, in classic groups with eager and with cooperative
rebalances, and in groups of the new protocol. Shares: 20 Java share consumers on one partition. Each system
has one core; the clients have the other.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.benchmarks.group_settling import (
    KAFKA_SETTINGS,
    PONOR_SETTINGS,
    PROTOCOLS,
    measure,
    prepare,
    print_settling,
)
from tests.benchmarks.report import Report
from tests.benchmarks.share_acknowledgements import LOADS, print_acknowledgements, running_share_load
from tests.benchmarks.subject import GENERATOR_CORE, Subject, kafka_subject, ponor_subject

SHARE: Final = "share"
WARM_DRAINS: Final = 2
R = TypeVar("R")


def main() -> None:
    """Measure both systems, print the tables, and save the report."""
    parser = argparse.ArgumentParser(prog="make bench-groups")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=[*PROTOCOLS, SHARE], default=[*PROTOCOLS, SHARE])
    options = parser.parse_args()
    extras: dict[str, Mapping[str, Any]] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ponor-bench-")))
        subjects: list[Subject] = [
            stack.enter_context(ponor_subject(directory / "ponor", PONOR_SETTINGS)),
            stack.enter_context(kafka_subject(directory / "kafka", KAFKA_SETTINGS)),
        ]
        os.sched_setaffinity(0, {GENERATOR_CORE} & os.sched_getaffinity(0) or os.sched_getaffinity(0))
        _say(f"load average before the run: {os.getloadavg()[0]:.1f}")
        protocols = [name for name in options.only if name != SHARE]
        if protocols:
            for subject in subjects:
                prepare(subject)
        for protocol in protocols:
            extras[protocol] = _settling(subjects, protocol, options.rounds)
        if SHARE in options.only:
            for load in LOADS:
                extras[f"{SHARE}, {load}"] = _acknowledgements(subjects, load, options.rounds)
        _say(f"load average after the run: {os.getloadavg()[0]:.1f}")
    print(f"kept as {Report(extras=extras).keep(Path('build/bench'))}")


def _settling(subjects: Sequence[Subject], protocol: str, rounds: int) -> Mapping[str, Any]:
    def run(subject: Subject, number: int) -> dict[str, float]:
        return measure(subject, f"{protocol}-{number}", protocol)

    for subject in subjects:
        _say(f"warming {subject.name}: {protocol}")
        run(subject, rounds)
    measured = _alternate(subjects, rounds, protocol, run)
    print_settling(protocol, measured)
    return measured


def _acknowledgements(subjects: Sequence[Subject], load: str, rounds: int) -> Mapping[str, Any]:
    what = f"{SHARE}, {load}"
    with ExitStack() as stack:
        loads = {one.name: stack.enter_context(running_share_load(one, load)) for one in subjects}
        for name, running in loads.items():
            for _ in range(WARM_DRAINS):
                _say(f"warming {name}: {what}")
                running.measure()
        measured = _alternate(subjects, rounds, what, lambda one, _: loads[one.name].measure())
    print_acknowledgements(load, measured)
    return {name: [asdict(one) for one in all_of] for name, all_of in measured.items()}


def _alternate(
    subjects: Sequence[Subject], rounds: int, what: str, run: Callable[[Subject, int], R]
) -> dict[str, list[R]]:
    """Run all rounds, each on both systems in alternating order."""
    measured: dict[str, list[R]] = {subject.name: [] for subject in subjects}
    for number in range(rounds):
        for subject in subjects if number % 2 == 0 else reversed(subjects):
            _say(f"{what}: round {number + 1} of {rounds}, {subject.name}")
            measured[subject.name].append(run(subject, number))
    return measured


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    main()
