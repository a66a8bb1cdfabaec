"""A share of each turn of the event loop for work on many partitions: small pieces run together, a large one over several turns."""

from __future__ import annotations

from typing import Final, TypeVar

from ponor_runtime.clock import Clock
from s3stream.turns import Steps

_T = TypeVar("_T")
STEPS_PER_TURN: Final = 8
"""Steps that run before others get the loop. The author of a step keeps it at a millisecond at most."""


class TurnShare:
    """Of one piece of work, such as an open of many partitions."""

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
