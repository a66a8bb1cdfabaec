"""Rig for store and reader tests: a store in memory whose calls can be made to fail, and a clock
whose sleeps take no time.

The memory store passes the conformance suite; failures apply to one call at a time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectInfo,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
)


class InstantClock:
    """A clock that advances only when a caller sleeps, without waiting."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.slept: list[float] = []

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ms(self) -> int:
        return self.now_ns // 1_000_000

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ns += int(seconds * 1e9)
        await asyncio.sleep(0)


class MiddleRandomness:
    """Randomness that always returns the middle of the range."""

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2

    def below(self, bound: int) -> int:
        return bound // 2

    def token(self, length: int) -> bytes:
        return b"\x55" * length

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=0)


@dataclass
class Failure:
    """Failure of the next call of an operation: the call does not reach the store, or only its
    answer is lost.
    """

    error: Exception = field(default_factory=lambda: ObjectStoreUnavailableError("503 Slow Down"))
    applied: bool = False
    after_items: int = 0


class MemoryObjectStore:
    """`ObjectStore` in a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, str, int, int]] = []
        self.failures: dict[str, list[Failure]] = {}
        self.change: Callable[[str, bytes], bytes] = lambda _key, data: data
        self.gate = asyncio.Event()
        self.gate.set()

    def fail(self, op: str, *failures: Failure) -> None:
        self.failures.setdefault(op, []).extend(failures)

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        failure = await self._begin("put", key, 0, sum(map(len, buffers)))
        if failure is None or failure.applied:
            if key in self.objects:
                raise ObjectAlreadyExistsError(f"{key}: the key is taken")
            self.objects[key] = b"".join(buffers)
        if failure is not None:
            raise failure.error

    async def get(self, key: str, start: int, length: int) -> bytes:
        await self._read("get", key, start, length)
        return self.change(key, self._object(key)[start : start + length])

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        await self._read("get_tail", key, 0, length)
        whole = self._object(key)
        return self.change(key, whole[max(0, len(whole) - length) :]), len(whole)

    async def delete(self, keys: Sequence[str]) -> None:
        failure = await self._begin("delete", ",".join(keys), 0, len(keys))
        if failure is not None:
            raise failure.error
        for key in keys:
            self.objects.pop(key, None)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        failure = await self._begin("list", prefix, 0, 0)
        for number, key in enumerate([key for key in self.objects if key.startswith(prefix)]):
            if failure is not None and number >= failure.after_items:
                raise failure.error
            if key in self.objects:
                yield ObjectInfo(key, len(self.objects[key]))
        if failure is not None:
            raise failure.error

    async def close(self) -> None:
        self.gate.set()

    async def _read(self, op: str, key: str, start: int, length: int) -> None:
        failure = await self._begin(op, key, start, length)
        if failure is not None:
            raise failure.error

    async def _begin(self, op: str, key: str, start: int, length: int) -> Failure | None:
        self.calls.append((op, key, start, length))
        await self.gate.wait()
        waiting = self.failures.get(op)
        return waiting.pop(0) if waiting else None

    def _object(self, key: str) -> bytes:
        if key not in self.objects:
            raise ObjectNotFoundError(f"{key}: no such object")
        return self.objects[key]
