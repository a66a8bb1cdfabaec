"""Work of the event loop cut into slices: what decodes much gives everybody else a turn in between.

What lives here: the ways to run a generator of steps. A step is chosen by its author to take well under a millisecond; a request that arrives
meanwhile waits for one step, not for all of them. Executors of Spark decode by `at_once` and have no loop: importing this brings no asyncio.
"""

from __future__ import annotations

import types
from collections.abc import Generator
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    import asyncio

_T = TypeVar("_T")
Steps: TypeAlias = Generator[None, None, _T]


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


@types.coroutine
def turn() -> Generator[None, None, None]:
    """Let everything else that is ready run first; no time passes."""
    yield
