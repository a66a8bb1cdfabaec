"""Waits before retries of calls to a store. After an outage, the first answer to any call ends the long
waits of all calls.
"""

from __future__ import annotations

from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.tasks import Wake

ENDED_S_MIN: Final = 0.5
"""An answer does not end waits shorter than this: that would save little time, and the waits spread the
calls."""


class SharedBackoff:
    """State shared by all waiting calls to one store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Wake, None] = {}
        self.answers = 0

    def answered(self) -> None:
        """Count an answer of the store, and end all long waits."""
        self.answers += 1
        if self._waiting:
            for wake in self._waiting:
                wake.set()
            self._waiting.clear()

    def call(self) -> CallBackoff:
        """Create the backoff of one call."""
        return CallBackoff(self)

    async def sleep(self, delay_s: float, *, ends_early: bool) -> None:
        """Wait for `delay_s`. With `ends_early`, the store's next answer ends the wait."""
        if not ends_early or delay_s < ENDED_S_MIN:
            await self._clock.sleep(delay_s)
            return
        wake = Wake(self._clock)
        self._waiting[wake] = None
        try:
            await wake.wait(delay_s)
        finally:
            self._waiting.pop(wake, None)


class CallBackoff:
    """The waits of one call.

    An answer to another call shows that the store is available again, and ends a wait. There is one
    exception: if the store answered any call since the previous wait of this call began (or since this call
    began), the wait lasts for the full backoff, because the store then refuses only this call.
    """

    def __init__(self, shared: SharedBackoff) -> None:
        self._shared = shared
        self._answers = shared.answers

    async def wait(self, delay_s: float) -> None:
        """Wait before the next attempt."""
        is_outage = self._answers == self._shared.answers
        self._answers = self._shared.answers
        await self._shared.sleep(delay_s, ends_early=is_outage)
