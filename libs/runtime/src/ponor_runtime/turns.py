"""Run long work in steps, so that other tasks of the event loop run in between.

Work is a generator that yields after each step of at most about a millisecond. A request that arrives
in the meantime waits for one step instead of for all of the work. Importing this module does not import
asyncio: Spark executors use `at_once` without a loop.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    import asyncio

    from ponor_runtime.clock import Clock

_T = TypeVar("_T")
Steps: TypeAlias = Generator[None, None, _T]
STEPS_PER_TURN: Final = 8
"""Steps of a `TurnShare` that run in one turn of the loop."""


def at_once(steps: Steps[_T]) -> _T:
    """Run all steps without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: _T = done.value
            return result


async def in_turns(steps: Steps[_T]) -> _T:
    """Run one step in each turn of the loop."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: _T = done.value
            return result
        await turn()


class Turns:
    """Serialize the work of several callers: a turn of the loop runs at most one step, however many callers
    there are.
    """

    def __init__(self) -> None:
        import asyncio  # costs 25 ms of CPU in a new process; users of `Turns` have imported it already

        self._busy: asyncio.Lock = asyncio.Lock()

    async def run(self, steps: Steps[_T]) -> _T:
        """Run the steps after those of earlier callers."""
        async with self._busy:
            return await in_turns(steps)

    async def run_short(self, steps: Steps[_T]) -> _T:
        """Run the first step immediately, so that short work never suspends. Run the others as `run` does."""
        try:
            next(steps)
        except StopIteration as done:
            result: _T = done.value
            return result
        await turn()
        return await self.run(steps)


class TurnShare:
    """Run several steps per turn, for work on many small items such as opening many partitions."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = STEPS_PER_TURN

    async def run(self, steps: Steps[_T]) -> _T:
        """Run all steps, at most `STEPS_PER_TURN` in one turn."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: _T = done.value
                return result
            await self.step()

    async def step(self) -> None:
        """Count one step; end the turn after `STEPS_PER_TURN`."""
        self._left -= 1
        if self._left <= 0:
            self._left = STEPS_PER_TURN
            await self._clock.sleep(0)


class TurnBudget:
    """Bound the work of all callers in one turn of the loop, by number and by duration."""

    def __init__(self, clock: Clock, *, count_max: int, duration_ns_max: int) -> None:
        self._clock = clock
        self._count_max = count_max
        self._duration_ns_max = duration_ns_max
        self._count = 0
        self._began_ns = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._waits: deque[object] = deque()
        """One object for each running `wait`, in order."""
        self._is_due = False
        """Whether `_call_waiting` runs now or in the next turn."""

    @property
    def is_spent(self) -> bool:
        """Whether further work must wait for the next turn."""
        if not self._count:
            return False
        elapsed_ns = self._clock.monotonic_ns() - self._began_ns
        return self._count >= self._count_max or elapsed_ns >= self._duration_ns_max

    @property
    def is_free(self) -> bool:
        """Whether further work may begin in this turn, and none waits for a later one."""
        return not self._waiting and not self._waits and not self.is_spent

    def call_later(self, work: Callable[[], None]) -> None:
        """Call `work` in a turn whose budget is not spent, after the work of earlier calls."""
        self._waiting.append(work)
        self._call_soon()

    def _call_soon(self) -> None:
        if self._waiting and not self._is_due:
            import asyncio  # see `Turns`

            self._is_due = True
            asyncio.get_running_loop().call_soon(self._call_waiting)

    def _call_waiting(self) -> None:
        try:
            for _ in range(len(self._waiting)):  # work that is added meanwhile waits for the next turn
                if self.is_spent:
                    break
                self._waiting.popleft()()
        finally:
            self._is_due = False
            self._call_soon()

    def spend(self) -> None:
        """Count one piece of work, which begins now."""
        if not self._count:
            import asyncio  # see `Turns`

            self._began_ns = self._clock.monotonic_ns()
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._count += 1

    async def wait(self) -> None:
        """Wait for a turn whose budget is not spent, after earlier calls."""
        if not self._waits and not self.is_spent:
            return
        # Without an order, a task that the loop runs before `_begin_turn` could find the budget spent in each
        # turn, because a task after `_begin_turn` spends it again.
        mine = object()
        self._waits.append(mine)
        try:
            while self._waits[0] is not mine or self.is_spent:
                await turn()
        finally:
            self._waits.remove(mine)

    def _begin_turn(self) -> None:
        self._count = 0


@types.coroutine
def turn() -> Generator[None, None, None]:
    """Yield to the event loop once."""
    yield
