"""The clock and the source of chance of one simulated process."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Final

WALL_START_MS: Final = 1_760_000_000_000
"""Where wall clocks begin: a time of no meaning, far from zero."""


def wall_ms_at(loop: asyncio.AbstractEventLoop) -> int:
    """What a wall clock shows that goes right."""
    return WALL_START_MS + int(loop.time() * 1000)


class SimClock:
    """`Clock` on the loop's virtual time.

    Args:
        loop: whose time it shows.
        rate: seconds of this clock in one true second; 1.001 runs fast.
        wall_offset_ms: how wrong the wall clock is.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, rate: float = 1.0, wall_offset_ms: int = 0
    ) -> None:
        self._loop = loop
        self._rate = rate
        self._wall_offset_ms = wall_offset_ms
        self._leapt_s = 0.0

    def monotonic_ns(self) -> int:
        return int((self._loop.time() * self._rate + self._leapt_s) * 1e9)

    def drift(self, rate: float) -> None:
        """The clock runs at another rate from now on, without a jump."""
        assert rate > 0
        self._leapt_s += self._loop.time() * (self._rate - rate)
        self._rate = rate

    def wall_ms(self) -> int:
        return WALL_START_MS + self._wall_offset_ms + self.monotonic_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)

    def jump_wall(self, offset_ms: int) -> None:
        """Somebody sets the wall clock."""
        self._wall_offset_ms += offset_ms

    def leap(self, seconds: float) -> None:
        """The machine was suspended: all its clocks are later at once, and what it waited for is late."""
        assert seconds >= 0
        self._leapt_s += seconds


class SimRandomness:
    """`Randomness` from a seed; the seed is text, so that it does not depend on how Python hashes."""

    def __init__(self, seed: str) -> None:
        self._source = random.Random(seed)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._source.random()

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)

    def token(self, length: int) -> bytes:
        return self._source.randbytes(length)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._source.getrandbits(128), version=4)
