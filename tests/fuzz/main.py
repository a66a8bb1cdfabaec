"""`make fuzz SECONDS=600`: every family of decoders under mutated input for so long, two families at a time.

    python -m tests.fuzz.main [--seconds S] [--seed N] [--only WORD]

A decoder must return or raise its one exception type; and its allocations are bounded by the input's length
(and by what it was asked to unpack at most), whatever lengths the input claims. A finding prints decoder,
seed and bytes, and ends the run with code 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from tests.fuzz.decoders import Decoder, all_decoders
from tests.fuzz.mutations import mutate

PROCESSES: Final = 2
SLICE: Final = 200
"""Inputs per turn of one decoder."""
MEASURED_EVERY: Final = 4
"""Every n-th slice runs under tracemalloc, which makes everything several times slower."""
OBJECT_FACTOR: Final = 160
"""Python objects per byte of input at worst: an array of empty structs takes one byte an element on the wire
and an object in memory.
"""
ALLOWANCE_BYTES: Final = 256 << 10


@dataclass(slots=True)
class Findings:
    """The finding, and the number of inputs."""

    inputs: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)


def fuzz(decoders: list[Decoder], seconds: float, seed: int) -> Findings:
    """Round robin over the decoders until the time ends or a finding."""
    findings = Findings()
    end = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < end and not findings.problems:
        rng = random.Random(seed * 1_000_003 + turn)
        decoder = decoders[turn % len(decoders)]
        is_measured = (turn // len(decoders)) % MEASURED_EVERY == MEASURED_EVERY - 1
        _slice(decoder, rng, findings, is_measured=is_measured)
        turn += 1
    return findings


def _slice(decoder: Decoder, rng: random.Random, findings: Findings, *, is_measured: bool) -> None:
    _try(decoder, decoder.seeds[0], findings)  # codecs are compiled at their first use
    if is_measured:
        tracemalloc.start()
    try:
        for number in range(SLICE):
            seed = rng.choice(decoder.seeds)
            data = seed if number == 0 else mutate(seed, rng)
            if is_measured:
                _try_measured(decoder, data, findings)
            else:
                _try(decoder, data, findings)
            if findings.problems:
                return
    finally:
        tracemalloc.stop()


def _try_measured(decoder: Decoder, data: bytes, findings: Findings) -> None:
    """Run one input and return its allocations; repeated once, because a codec is compiled at its first
    use.
    """
    bound = OBJECT_FACTOR * len(data) + 2 * decoder.output_bytes_max + ALLOWANCE_BYTES
    used = 0
    for _ in range(2):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        _try(decoder, data, findings)
        used = tracemalloc.get_traced_memory()[1] - before
        if used <= bound:
            return
    findings.problems.append(
        f"{decoder.name}: {used:,} bytes were allocated for {len(data):,}, bound {bound:,}:"
        f" {data[:400].hex()}"
    )


def _try(decoder: Decoder, data: bytes, findings: Findings) -> None:
    findings.inputs += 1
    try:
        decoder.decode(data)
    except decoder.refusal:
        findings.refused += 1
    except Exception as error:
        findings.problems.append(f"{decoder.name}: {error!r} for {len(data)} bytes: {data[:400].hex()}")


def main() -> int:
    """Run the fuzzers that the command line selects."""
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--seconds", type=float, default=60.0, help="per family")
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000_000)
    parser.add_argument("--only", default="", help="families whose name contains this")
    options = parser.parse_args()
    families = sorted({decoder.family for decoder in all_decoders() if options.only in decoder.family})
    with ProcessPoolExecutor(PROCESSES) as pool:
        runs = {
            family: pool.submit(_fuzz_family, family, options.seconds, options.seed) for family in families
        }
        results = {family: run.result() for family, run in runs.items()}
    for family, findings in results.items():
        print(f"{family}: {findings.inputs:,} inputs, {findings.refused:,} refused, seed {options.seed}")
        for problem in findings.problems:
            print("FOUND", problem)
    return 1 if any(findings.problems for findings in results.values()) else 0


def _fuzz_family(family: str, seconds: float, seed: int) -> Findings:
    return fuzz([decoder for decoder in all_decoders() if decoder.family == family], seconds, seed)


if __name__ == "__main__":
    sys.exit(main())
