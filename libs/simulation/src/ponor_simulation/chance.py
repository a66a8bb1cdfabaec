"""The clock and the random numbers of one simulated process."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Final

WALL_START_MS: Final = 1_760_000_000_000
"""Wall clock at virtual time 0; an arbitrary time far from zero."""


def wall_ms_at(loop: asyncio.AbstractEventLoop) -> int:
    """Return the time of a correct wall clock, in ms."""
    return WALL_START_MS + int(loop.time() * 1000)


class SimClock:
    """`Clock` on the loop's virtual time.

    Args:
        loop: the source of time.
        rate: seconds of this clock per second of virtual time; 1.001 is fast.
        wall_offset_ms: the error of the wall clock.
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
        """Change the rate, without a jump."""
        assert rate > 0
        self._leapt_s += self._loop.time() * (self._rate - rate)
        self._rate = rate

    def wall_ms(self) -> int:
        return WALL_START_MS + self._wall_offset_ms + self.monotonic_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)

    def jump_wall(self, offset_ms: int) -> None:
        """Change the wall clock's error by `offset_ms`."""
        self._wall_offset_ms += offset_ms

    def leap(self, seconds: float) -> None:
        """Advance all clocks of the machine, as after a suspend; timers that became due then run late."""
        assert seconds >= 0
        self._leapt_s += seconds


class SimRandomness:
    """`Randomness` from a seed. The seed is text, because hashes of other objects may differ between runs."""

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
