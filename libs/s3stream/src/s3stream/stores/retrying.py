"""Repeats calls that failed in a way that may pass: bounded, with exponential backoff and jitter.

Knows what a repeated create-only put means: its first attempt may have been applied although the answer was lost, and then the second
finds the key taken by itself. The object is then read back and compared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.object_store import (
    ObjectAlreadyExistsError,
    ObjectInfo,
    ObjectStore,
    ObjectStoreError,
    ObjectStoreUnavailableError,
)
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from s3stream.stores.buffers import last_bytes, total_bytes
from s3stream.stores.reads_in_place import get_into, reads_in_place

_T = TypeVar("_T")
COMPARED_TAIL_BYTES: Final = 64 * 1024
"""Of our objects this holds footer and (most of) the index with the CRC32C of every block: equal tails are equal objects."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """When to give up, and how long to wait before that."""

    attempts_max: int = 30
    deadline_ms: int = 60_000
    backoff_ms_first: int = 50
    backoff_ms_max: int = 5_000


class RetryingObjectStore:
    """`ObjectStore` that repeats the retriable failures of another one; the last error is raised when time or attempts run out."""

    def __init__(
        self,
        inner: ObjectStore,
        *,
        clock: Clock,
        randomness: Randomness,
        telemetry: Telemetry,
        settings: RetrySettings | None = None,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._randomness = randomness
        self._settings: Final = settings if settings is not None else RetrySettings()
        self._retries = {
            op: telemetry.counter("ponor_object_store_retries_total", op=op)
            for op in ("put", "get", "list", "delete")
        }

    async def put(self, key: str, buffers: Sequence[Buffer]) -> None:
        retry = self._new_retry("put")
        while True:
            try:
                return await self._inner.put(key, buffers)
            except ObjectAlreadyExistsError:
                if retry.failures == 0 or not await self._is_stored(key, buffers):
                    raise
                return None  # an earlier attempt was applied, only its answer was lost
            except ObjectStoreError as error:
                await retry.wait_after(error)

    async def get(self, key: str, start: int, length: int) -> bytes:
        return await self._repeat("get", lambda: self._inner.get(key, start, length))

    @property
    def reads_in_place(self) -> bool:
        return reads_in_place(self._inner)

    async def get_into(self, key: str, start: int, places: Sequence[memoryview]) -> int:
        return await self._repeat("get", lambda: get_into(self._inner, key, start, places))

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        return await self._repeat("get", lambda: self._whole_tail(key, length))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._repeat("delete", lambda: self._inner.delete(keys))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """A listing that broke off starts anew and goes on behind the key that it told last.

        This needs the same order every time, which need not be the order of the keys (SeaweedFS lists `ns/1` before `ns-b/1`). If that key was
        deleted meanwhile, the failure is raised, and the caller lists again.
        """
        retry = self._new_retry("list")
        told: str | None = None
        while True:
            skipping = told is not None
            told_before = told
            try:
                async for info in self._inner.list(prefix):
                    if skipping:
                        skipping = info.key != told_before
                        continue
                    told = info.key
                    yield info
            except ObjectStoreError as error:
                failure = error
            else:
                if skipping:
                    raise failure
                return
            if told != told_before:  # it came further: the bounds are on one obstacle, not on a long listing
                retry = self._new_retry("list")
            await retry.wait_after(failure)

    async def close(self) -> None:
        await self._inner.close()

    async def _repeat(self, op: str, call: Callable[[], Awaitable[_T]]) -> _T:
        retry = self._new_retry(op)
        while True:
            try:
                return await call()
            except ObjectStoreError as error:
                await retry.wait_after(error)

    async def _whole_tail(self, key: str, length: int) -> tuple[bytes, int]:
        tail, size = await self._inner.get_tail(key, length)
        if len(tail) != min(length, size):
            # Of a ranged get nobody here knows how much there is; who reads blocks does, and asks again.
            raise ObjectStoreUnavailableError(f"{key}: the answer broke off after {len(tail)} bytes")
        return tail, size

    async def _is_stored(self, key: str, buffers: Sequence[Buffer]) -> bool:
        tail, size = await self.get_tail(key, COMPARED_TAIL_BYTES)
        return size == total_bytes(buffers) and tail == last_bytes(buffers, COMPARED_TAIL_BYTES)

    def _new_retry(self, op: str) -> Retry:
        return Retry(self._clock, self._randomness, self._settings, self._retries[op].add)


class Retry:
    """The repetitions of one call."""

    def __init__(
        self, clock: Clock, randomness: Randomness, settings: RetrySettings, count: Callable[[int], None]
    ) -> None:
        self._clock = clock
        self._randomness = randomness
        self._settings = settings
        self._count = count
        self._deadline_ns = clock.monotonic_ns() + settings.deadline_ms * 1_000_000
        self.failures = 0

    async def wait_after(self, error: ObjectStoreError) -> None:
        """Wait before the next attempt, or raise the error if there may be none."""
        self.failures += 1
        if not error.retriable or self.failures >= self._settings.attempts_max:
            raise error
        delay_ms = self._delay_ms()
        if self._clock.monotonic_ns() + delay_ms * 1_000_000 >= self._deadline_ns:
            raise error
        self._count(1)
        await self._clock.sleep(delay_ms / 1000)

    def _delay_ms(self) -> float:
        # "Equal jitter": half is certain, so that a store in trouble is left alone; half is chance, so that callers spread.
        doublings = min(self.failures - 1, 30)
        ceiling = min(self._settings.backoff_ms_first << doublings, self._settings.backoff_ms_max)
        return ceiling / 2 + self._randomness.uniform(0, ceiling / 2)
