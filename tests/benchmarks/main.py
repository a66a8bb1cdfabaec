"""`make bench`: Ponor and a real Apache Kafka 4.3.1 in one run, after a warm-up, interleaved;
medians and ratios are saved as JSON.

python -m tests.benchmarks.main [WORD ...] [--against CHECKOUT] [--no-kafka] [--rounds N] [--seconds S] ...

Only cases whose name contains one of the words run. Ponor syncs every produce to the write-ahead
log before it answers, and uploads to the directory store meanwhile. Kafka answers from the page
cache, as its default configuration does. Both share one core; the load generator has the other.
Kafka needs Java, and Maven for its jars; without them only Ponor is measured, with a message.

`--against CHECKOUT` compares with another Ponor from a second working tree in which `make install`
was run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.benchmarks.cases import cases
from tests.benchmarks.report import BASELINE, Report, print_cases
from tests.benchmarks.rounds import run_rounds, warm
from tests.benchmarks.subject import GENERATOR_CORE, Subject, kafka_subject, ponor_subject
from tests.peers.artifacts import KAFKA, PeerMissingError, java

RESULTS: Final = Path("build/bench")


def main() -> None:
    """Run the selected cases, and print and save the report."""
    options = _options()
    chosen = [
        case for case in cases() if not options.words or any(word in case.name for word in options.words)
    ]
    if not chosen:
        raise SystemExit(f"no case has one of {options.words} in its name: {[case.name for case in cases()]}")
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="ponor-bench-", dir=options.directory))
        )
        subjects: list[Subject] = [stack.enter_context(ponor_subject(directory / "ponor"))]
        if options.against is not None:
            baseline = ponor_subject(directory / BASELINE, name=BASELINE, checkout=options.against)
            subjects.append(stack.enter_context(baseline))
        missing = "--no-kafka was given" if options.no_kafka else _why_no_kafka()
        if missing is None:
            subjects.append(stack.enter_context(kafka_subject(directory / "kafka")))
        else:
            _say(f"Apache Kafka is not measured: {missing}")
        os.sched_setaffinity(0, {GENERATOR_CORE} & os.sched_getaffinity(0) or os.sched_getaffinity(0))
        for subject in subjects:
            warm(subject, chosen, options.warm_seconds, _say)
        report = Report()
        for case in chosen:
            report.add(
                case, run_rounds(subjects, case, rounds=options.rounds, seconds=options.seconds, say=_say)
            )
        kept = report.keep(RESULTS)
        names = [subject.name for subject in subjects]
    print_cases(report, names)
    print(f"kept as {kept}")


def _why_no_kafka() -> str | None:
    """Return Apache Kafka, or None if it cannot be started; fetch missing jars with a message."""
    try:
        java()
        if not KAFKA.is_complete():
            _say(f"fetching {KAFKA.name} with Maven into {KAFKA.directory}")
            KAFKA.fetch()
    except PeerMissingError as error:
        return str(error)
    return None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only cases with one of these words in their name")
    parser.add_argument(
        "--quick", action="store_true", help="a look, no result: 10 s of warm-up, 2 rounds of 3 s"
    )
    parser.add_argument("--no-kafka", action="store_true", help="measure Ponor alone")
    parser.add_argument("--against", type=Path, help="a second working tree of Ponor to compare with")
    parser.add_argument("--rounds", type=int, help="per case and subject (5)")
    parser.add_argument("--seconds", type=float, help="per round (6)")
    parser.add_argument("--warm-seconds", type=float, help="per subject (120)")
    parser.add_argument("--directory", type=Path, help="where both keep their data; on one disk")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (3.0 if options.quick else 6.0)
    options.warm_seconds = options.warm_seconds or (10.0 if options.quick else 120.0)
    return options


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    main()
