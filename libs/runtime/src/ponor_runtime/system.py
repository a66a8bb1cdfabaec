"""The clock and randomness ports by the operating system. `lifecycle` creates them once per process."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
import uuid


class SystemClock:
    """`Clock` on the operating system's clocks."""

    __slots__ = ()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemRandomness:
    """`Randomness` on the kernel's generator: secure enough for tokens, cheap enough for jitter."""

    __slots__ = ("_source",)

    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._source.random()

    def below(self, bound: int) -> int:
        return self._source.randrange(bound)

    def token(self, length: int) -> bytes:
        return secrets.token_bytes(length)

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()
