"""`make bench-isolation`: the effect of cold readers on producers. The broker has one core, all
clients the other.

1,000 produce requests per second are measured alternately with and without eight readers that scan
old data at 50 MB/s in total (A B A B). The data is eight times the broker's memory, and the broker
is restarted before the reads, so every read goes to the object store.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.benchmarks.cases import KIB
from tests.benchmarks.cold_readers import cold_readers
from tests.benchmarks.frames import check_produce, create_topic, produce_frame
from tests.benchmarks.raw_client import LoadResult, closed_loop, open_loop
from tests.benchmarks.report import Report
from tests.benchmarks.subject import GENERATOR_CORE, SUBJECT_CORE, PonorSubject, on_core, ponor_subject

READERS: Final = 8
READ_BYTES_PER_S: Final = 50e6
PRODUCE_RATE: Final = 1000.0
PRODUCERS: Final = 16
CACHE_BYTES: Final = 64 << 20
COLD_BYTES: Final = 8 * 2 * CACHE_BYTES
FACTOR: Final = 1.2
ALLOWANCE_MS: Final = 1.0
SETTINGS: Final = {
    "log_cache_bytes_max": CACHE_BYTES,
    "block_cache_bytes_max": CACHE_BYTES,
    "upload_size_bytes_max": CACHE_BYTES // 4,
}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="make bench-isolation")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="ponor-bench-") as directory,
        ponor_subject(Path(directory), SETTINGS) as subject,
    ):
        os.sched_setaffinity(0, {GENERATOR_CORE} & os.sched_getaffinity(0) or os.sched_getaffinity(0))
        _fill(subject)
        with on_core(SUBJECT_CORE):
            subject.cluster.stop()
            subject.cluster.start()
        frames = [produce_frame("hot", n % PRODUCERS, 100, 100, f"p{n}") for n in range(PRODUCERS)]
        check_produce(subject.bootstrap, frames[0])
        open_loop(subject.bootstrap, frames, rate=PRODUCE_RATE, seconds=5.0)
        measured = _alternate(subject, frames, options.rounds, options.seconds)
    alone = [result.percentile_ms(0.99) for result in measured.alone]
    beside = [result.percentile_ms(0.99) for result in measured.beside]
    bound_ms = FACTOR * statistics.median(alone) + ALLOWANCE_MS
    value_ms = statistics.median(beside)
    read_rates = measured.read_bytes_per_s
    print(f"produce p99 at {PRODUCE_RATE:g}/s alone: {_shown(alone)}")
    print(
        f"with {READERS} cold readers at {statistics.median(read_rates) / 1e6:.1f} MB/s in all:"
        f" {_shown(beside)}"
    )
    print(
        f"promise: <= {FACTOR}x + {ALLOWANCE_MS} ms = {bound_ms:.2f} ms:"
        f" {'kept' if value_ms <= bound_ms else 'NOT KEPT'}"
    )
    for name, results in (("alone", measured.alone), ("beside readers", measured.beside)):
        print(f"of it the generator's own delay, {name}: {_shown([one.late_ms(0.99) for one in results])}")
    report = Report(
        extras={"isolation": {"alone_p99_ms": alone, "beside_p99_ms": beside, "read_bytes_per_s": read_rates}}
    )
    print(f"kept as {report.keep(Path('build/bench'))}")


def _fill(subject: PonorSubject) -> None:
    """Write old data to every partition that is read."""
    create_topic(subject.bootstrap, "cold", READERS)
    create_topic(subject.bootstrap, "hot", PRODUCERS)
    sys.stderr.write(f"writing {COLD_BYTES >> 20} MiB of old data\n")
    frames = [produce_frame("cold", n, 64 * KIB, KIB, f"fill{n}") for n in range(READERS)]
    written = 0
    while written < COLD_BYTES:
        written += closed_loop(subject.bootstrap, frames, depth=2, seconds=1.0).requests * 64 * KIB


@dataclass(slots=True)
class _Measured:
    """Run all rounds."""

    alone: list[LoadResult] = field(default_factory=list)
    beside: list[LoadResult] = field(default_factory=list)
    read_bytes_per_s: list[float] = field(default_factory=list)


def _alternate(subject: PonorSubject, frames: list[bytes], rounds: int, seconds: float) -> _Measured:
    measured = _Measured()
    for number in range(rounds):
        sys.stderr.write(f"round {number + 1} of {rounds}\n")
        measured.alone.append(open_loop(subject.bootstrap, frames, rate=PRODUCE_RATE, seconds=seconds))
        with cold_readers(
            subject.bootstrap, "cold", READERS, bytes_per_s=READ_BYTES_PER_S, core=GENERATOR_CORE
        ) as read:
            while not read.value:
                time.sleep(0.1)
            before, began = read.value, time.monotonic()
            measured.beside.append(open_loop(subject.bootstrap, frames, rate=PRODUCE_RATE, seconds=seconds))
            measured.read_bytes_per_s.append((read.value - before) / (time.monotonic() - began))
        time.sleep(1.0)
    return measured


def _shown(values: list[float]) -> str:
    return f"median {statistics.median(values):.2f} ms ({', '.join(f'{value:.2f}' for value in values)})"


if __name__ == "__main__":
    main()
