"""Rounds: every case on every system after a warm-up, each round on its own topic.

The order of the systems alternates (A B B A), so that drift of the machine cancels out.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final

from tests.benchmarks.cases import FILL_BATCHES, KIB, PARTITIONS, Case
from tests.benchmarks.frames import check_fetch, check_produce, create_topic, delete_topic, produce_frame
from tests.benchmarks.raw_client import LoadResult, closed_loop, open_loop
from tests.benchmarks.subject import Subject

WARM_STEP_S: Final = 4.0
SETTLE_S: Final = 1.0
"""Pause between the deletion of a topic and the next round."""
Say = Callable[[str], None]
_TOPIC_NUMBERS: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class Round:
    """Results of one round."""

    requests_per_s: float
    mb_per_s: float
    cpu_s_per_gb: float
    cpu_us_per_request: float
    p50_ms: float
    p99_ms: float
    generator_busy: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Medians of a case's rounds on one system, and all rounds."""

    median: Round
    rounds: tuple[Round, ...]

    def spread(self, figure: str) -> tuple[float, float]:
        """Least and greatest value."""
        values = [getattr(one, figure) for one in self.rounds]
        return min(values), max(values)


def warm(subject: Subject, cases: Sequence[Case], seconds: float, say: Say) -> None:
    """Run every case in turn until the time ends. A just-in-time compiler needs minutes of the measured
    load.
    """
    end = time.monotonic() + seconds
    for case in itertools.cycle(cases):
        left = end - time.monotonic()
        if left <= 0:
            return
        say(f"warming {subject.name}: {case.name}, {left:.0f} s left")
        with _topic(subject, case) as frames:
            _load(subject, case, frames, min(WARM_STEP_S, max(left, 0.5)))


def run_rounds(
    subjects: Sequence[Subject], case: Case, *, rounds: int, seconds: float, say: Say
) -> dict[str, Summary]:
    """Measure one case on all systems, `rounds` times each, in alternating order."""
    measured: dict[str, list[Round]] = {subject.name: [] for subject in subjects}
    for number in range(rounds):
        for subject in subjects if number % 2 == 0 else reversed(subjects):
            say(f"{case.name}: round {number + 1} of {rounds}, {subject.name}")
            measured[subject.name].append(run_round(subject, case, seconds))
    return {name: Summary(_median(values), tuple(values)) for name, values in measured.items()}


def run_round(subject: Subject, case: Case, seconds: float) -> Round:
    """One measurement after half a second of the same load."""
    with _topic(subject, case) as frames:
        _load(subject, case, frames, 0.5)
        before = subject.cpu_seconds()
        result = _load(subject, case, frames, seconds)
        cpu_s = subject.cpu_seconds() - before
    moved = result.requests * case.payload_bytes
    return Round(
        requests_per_s=result.requests / result.seconds,
        mb_per_s=moved / result.seconds / 1e6,
        cpu_s_per_gb=cpu_s / (moved / 1e9) if moved else 0.0,
        cpu_us_per_request=1e6 * cpu_s / result.requests,
        p50_ms=result.percentile_ms(0.5),
        p99_ms=result.percentile_ms(0.99),
        generator_busy=result.busy_fraction,
    )


def _load(subject: Subject, case: Case, frames: list[bytes], seconds: float) -> LoadResult:
    if case.rate is not None:
        return open_loop(subject.bootstrap, frames, rate=case.rate, seconds=seconds)
    return closed_loop(subject.bootstrap, frames, depth=case.depth, seconds=seconds)


@contextmanager
def _topic(subject: Subject, case: Case) -> Iterator[list[bytes]]:
    """Create the case's frames for a new topic and check them; delete the topic afterwards."""
    topic = f"bench-{next(_TOPIC_NUMBERS)}"
    create_topic(subject.bootstrap, topic, PARTITIONS, dict(subject.topic_configs()))
    frames = case.frames(topic)
    if case.is_fetch:
        for partition in range(len(frames)):
            for _ in range(FILL_BATCHES):
                check_produce(subject.bootstrap, produce_frame(topic, partition, 64 * KIB, KIB, "fill"))
        assert check_fetch(subject.bootstrap, frames[0]) > 0
    elif case.payload_bytes:
        for frame in frames:
            check_produce(subject.bootstrap, frame)
    yield frames
    delete_topic(subject.bootstrap, topic)
    time.sleep(SETTLE_S)


def _median(rounds: Sequence[Round]) -> Round:
    columns = [asdict(one) for one in rounds]
    return Round(**{name: statistics.median(column[name] for column in columns) for name in columns[0]})
