"""Work of the event loop in slices: long work gives everybody else a turn in between.

The ways to run a generator of steps. The author of a step keeps it at a millisecond at most; a request that arrives meanwhile waits for one slice, not
for all of the work. Executors of Spark decode by `at_once` and have no loop: importing this brings no asyncio.
"""

from __future__ import annotations

import types
from collections.abc import Generator
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    import asyncio

    from ponor_runtime.clock import Clock

_T = TypeVar("_T")
Steps: TypeAlias = Generator[None, None, _T]
STEPS_PER_TURN: Final = 8
"""Steps of a `TurnShare` that run before others get the loop."""


def at_once(steps: Steps[_T]) -> _T:
    """Run all steps without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: _T = done.value
            return result


async def in_turns(steps: Steps[_T]) -> _T:
    """Run the steps with a turn of the loop between any two."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: _T = done.value
            return result
        await turn()


class Turns:
    """Sliced work of many, one piece at a time: however many readers decode, a turn of the loop has one slice of it."""

    def __init__(self) -> None:
        import asyncio  # 25 ms of a fresh process's CPU; whoever makes a Turns has a loop, and it already

        self._busy: asyncio.Lock = asyncio.Lock()

    async def run(self, steps: Steps[_T]) -> _T:
        """Run the steps when those of earlier callers are done."""
        async with self._busy:
            return await in_turns(steps)

    async def run_short(self, steps: Steps[_T]) -> _T:
        """Run the first step at once: short work is done then, without a pause. Run the others as `run` does."""
        try:
            next(steps)
        except StopIteration as done:
            result: _T = done.value
            return result
        await turn()
        return await self.run(steps)


class TurnShare:
    """A share of each turn for one piece of work on many things, such as an open of many partitions: small pieces run together, a large one over several turns."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = STEPS_PER_TURN

    async def run(self, steps: Steps[_T]) -> _T:
        """Run all steps, and give others the loop whenever the share of a turn is used."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: _T = done.value
                return result
            await self.step()

    async def step(self) -> None:
        """A step was done."""
        self._left -= 1
        if self._left <= 0:
            self._left = STEPS_PER_TURN
            await self._clock.sleep(0)


@types.coroutine
def turn() -> Generator[None, None, None]:
    """Let everything else that is ready run first; no time passes."""
    yield
