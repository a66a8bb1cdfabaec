"""Retries of calls after temporary failures: bounded, with exponential backoff and jitter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from ponor_runtime.clock import Clock
from ponor_runtime.object_store import (
    MultipartNotFoundError,
    ObjectAlreadyExistsError,
    ObjectNotFoundError,
    ObjectStoreError,
)
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from s3stream.backoff import CallBackoff, SharedBackoff
from s3stream.stores.policy import OBJECT_OPERATIONS, Attempt, Listing, Operation, StorePolicy

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Limits of the attempts of one call, and of the pauses between them."""

    attempts_max: int = 30
    deadline_ms: int = 60_000
    backoff_ms_first: int = 50
    backoff_ms_max: int = 5_000


class Retries(StorePolicy):
    """Repeats retriable failures; raises the last error when time or attempts are used up.

    After an outage, the first answer to a call ends the pauses of the others (`SharedBackoff`).

    The first attempt of a create-only call may have been applied although its answer was lost. The
    second attempt then finds the key taken, and `Operation.was_applied` decides whether that is a
    success.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        randomness: Randomness,
        telemetry: Telemetry,
        settings: RetrySettings | None = None,
        operations: Sequence[str] = OBJECT_OPERATIONS,
    ) -> None:
        self._clock = clock
        self._backoff = SharedBackoff(clock)
        self._randomness = randomness
        self._settings: Final = settings if settings is not None else RetrySettings()
        self._retries = {
            name: telemetry.counter("ponor_object_store_retries_total", op=name) for name in operations
        }

    async def call(self, operation: Operation, attempt: Attempt[_T]) -> _T:
        retry = self._new_retry(operation)
        while True:
            try:
                result = await attempt()
            except (ObjectAlreadyExistsError, MultipartNotFoundError):
                self._backoff.answered()
                if not retry.failures or operation.was_applied is None or not await operation.was_applied():
                    raise
                return cast("_T", None)  # operations with `was_applied` return nothing
            except ObjectNotFoundError:
                self._backoff.answered()
                raise
            except ObjectStoreError as error:
                await retry.wait_after(error)
            else:
                self._backoff.answered()
                return result

    async def listing(self, operation: Operation, attempt: Listing[_T]) -> AsyncIterator[_T]:
        """Restart an interrupted listing, and skip the items that were already yielded.

        The store must list in the same order every time; this need not be the order of the keys (SeaweedFS
        lists `ns/1` before `ns-b/1`). If the last yielded item was deleted in the meantime, the failure is
        raised; the caller lists again.
        """
        retry = self._new_retry(operation)
        last: _T | None = None
        while True:
            last_before = last
            skipping = last is not None
            try:
                async for item in attempt():
                    if skipping:
                        skipping = item != last_before
                        continue
                    last = item
                    yield item
            except ObjectStoreError as error:
                failure = error
            else:
                self._backoff.answered()
                if skipping:
                    raise failure
                return
            if last != last_before:
                # The limits apply to one failure and not to the whole listing.
                retry = self._new_retry(operation)
            await retry.wait_after(failure)

    def _new_retry(self, operation: Operation) -> _Retry:
        count = self._retries[operation.name].add
        return _Retry(self._clock, self._backoff.call(), self._randomness, self._settings, count)


class _Retry:
    """The attempts of one call."""

    def __init__(
        self,
        clock: Clock,
        backoff: CallBackoff,
        randomness: Randomness,
        settings: RetrySettings,
        count: Callable[[int], None],
    ) -> None:
        self._clock = clock
        self._backoff = backoff
        self._randomness = randomness
        self._settings = settings
        self._count = count
        self._deadline_ns = clock.monotonic_ns() + settings.deadline_ms * 1_000_000
        self.failures = 0

    async def wait_after(self, error: ObjectStoreError) -> None:
        """Wait before the next attempt, or raise the error if no further attempt is allowed."""
        self.failures += 1
        if not error.retriable or self.failures >= self._settings.attempts_max:
            raise error
        delay_ms = self._delay_ms()
        if self._clock.monotonic_ns() + delay_ms * 1_000_000 >= self._deadline_ns:
            raise error
        self._count(1)
        await self._backoff.wait(delay_ms / 1000)

    def _delay_ms(self) -> float:
        # "Equal jitter": the fixed half relieves a store in trouble, the random half spreads the callers.
        doublings = min(self.failures - 1, 30)
        ceiling = min(self._settings.backoff_ms_first << doublings, self._settings.backoff_ms_max)
        return ceiling / 2 + self._randomness.uniform(0, ceiling / 2)
