"""Runs every scenario in a separate process and fails if its longest turn is above the bound.

Run it: `make bench-turns` or `python -m tests.benchmarks.turns.main [NAME...] [--bound-ms N]
[--rounds N]`. A scenario passes if one of its rounds stays within the bound: the work of a turn is
the same in every round, and the rest is the effect of a shared CPU cache.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from typing import Final

from tests.benchmarks.turns import (  # noqa: F401 - they register their scenarios
    answers,
    control_plane,
    groups,
    partitions,
    storage,
    transactions,
)
from tests.benchmarks.turns.scenario import SCENARIOS, Scenario
from tests.benchmarks.turns.turn_recorder import TurnRecorder

BOUND_MS: Final = 20.0
ROUNDS: Final = 3
ABOVE_BOUND: Final = 3
"""Exit code of a round with a turn above the bound."""


def run_once(scenario: Scenario, bound_ms: float) -> bool:
    """Run the scenario in this process and print the results; return whether it stayed within the bound."""

    recorder: list[TurnRecorder] = []

    def new_loop() -> TurnRecorder:
        recorder.append(TurnRecorder(bound_ms))
        return recorder[0]

    async def body() -> None:
        await scenario.body(recorder[0])

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(body())
        turns = recorder[0].stop_recording()
    assert turns.count, f"scenario {scenario.name} recorded no turn"
    print(
        f"{scenario.name}: {scenario.what}: {turns.count} turns, longest {turns.longest_ms:.1f} ms,"
        f" {turns.above} above {bound_ms:g} ms",
        flush=True,
    )
    if turns.stack:
        print(turns.stack, flush=True)
    return turns.above == 0


def main() -> None:
    """Run the scenarios."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.turns.main")
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios; all if none is named")
    parser.add_argument("--bound-ms", type=float, default=BOUND_MS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.names or sorted(SCENARIOS)
    if options.in_process:
        passed = [run_once(SCENARIOS[name], options.bound_ms) for name in names]
        sys.exit(0 if all(passed) else ABOVE_BOUND)
    failed = [name for name in names if not _passes(name, options.bound_ms, options.rounds)]
    if failed:
        sys.exit(f"turns above {options.bound_ms:g} ms in: {', '.join(failed)}")


def _passes(name: str, bound_ms: float, rounds: int) -> bool:
    command = [sys.executable, "-m", "tests.benchmarks.turns.main", name, "--in-process"]
    for _ in range(rounds):
        code = subprocess.run([*command, "--bound-ms", str(bound_ms)]).returncode
        if code == 0:
            return True
        if code != ABOVE_BOUND:
            sys.exit(f"scenario {name} ended with exit code {code}")
    return False


if __name__ == "__main__":
    main()
