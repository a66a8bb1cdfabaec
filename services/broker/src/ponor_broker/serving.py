"""The authority that says whether this broker may answer its clients, and why not.

A broker that was replaced does not know it at once. What is produced to it is safe without this authority: its write-ahead log in the store has a fence
where the recovery ended, a put behind the fence fails, and nothing is acknowledged. But it would answer reads, group requests and metadata requests from
what it remembers. So a broker answers only while two ages are within a bound: the age of its metadata (counted from a probe that a controller answered,
so that frames that waited somewhere prove nothing) and the silence of the leading controller. The controllers may begin to replace a broker that they have not
heard for their session timeout. The bound is two thirds of it, because a broker sends a heartbeat every third: its last heartbeat that arrived may be so much
older than the last probe that was answered. The controllers may begin earlier when the broker's session broke; then reads can be stale until the broker is told,
or until the bound is reached.

An election of the controllers takes a second or two, less than the bound. When no controller leads for longer than that, nobody can be replaced either, but
a broker with its log in the store cannot tell this from being cut off, and stops as well. Nobody takes over a log in a file, so there the check is off.

The dispatcher asks `check` before a request begins and again when its answer is ready (`requests_under_way`), because the process may have been paused in
between. Partitions and the group coordinator ask `refusal`. `/readyz` shows it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.clock import Clock

LOG: Final = logging.getLogger("ponor.broker")
LOOKS: Final = 20
"""Looks per `after_ms`: waiting requests hear of a refusal at most a twentieth of the bound late."""
AUTOMATIC: Final = -1
NS_PER_MS: Final = 1_000_000


def fence_after_ms(setting_ms: int, wal: WalKind, session_timeout_ms: int) -> int:
    """The bound in ms that the setting means for a broker with this kind of log; 0: no bound."""
    if setting_ms != AUTOMATIC:
        return setting_ms
    return session_timeout_ms * 2 // 3 if wal is WalKind.OBJECT else 0


class Serving:
    """Refuses when the metadata are older than a bound, or the leading controller was silent for as long; permits when both are current again.

    Attributes:
        refusal: why this broker may not answer, as a sentence for people; None while it may. As of the last look.
        epoch: how often permission was withdrawn. What was computed in an earlier epoch must not be answered.
        listeners: called with whether permission was withdrawn, after `refusal` has changed.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        staleness_ms: Callable[[], int | None],
        silence_ms: Callable[[], int | None],
    ) -> None:
        self._clock = clock
        self._after_ms = 0
        self._staleness_ms = staleness_ms
        self._silence_ms = silence_ms
        self._permitted_until_ns = 0
        self.refusal: str | None = None
        self.epoch = 0
        self.listeners: list[Callable[[bool], None]] = []

    def limit(self, after_ms: int) -> None:
        """Refuse from now on when an age exceeds this; 0, as before this call: never."""
        assert after_ms >= 0
        self._after_ms = after_ms

    def check(self) -> str | None:
        """Compare both ages with the bound now; returns `refusal`."""
        if self._after_ms and self._clock.monotonic_ns() > self._permitted_until_ns:
            self._look()
        return self.refusal

    async def watch(self) -> None:
        """Look for ever, so that requests that wait are refused in time; a background task. Returns if there is no limit."""
        while self._after_ms:
            self.check()
            await self._clock.sleep(self._after_ms / LOOKS / 1000)

    def _look(self) -> None:
        now_ns = self._clock.monotonic_ns()
        staleness_ms, silence_ms = self._staleness_ms(), self._silence_ms()
        if staleness_ms is None or silence_ms is None or max(staleness_ms, silence_ms) > self._after_ms:
            self._permitted_until_ns = 0  # every request looks anew
            self._withdraw(
                f"metadata are {staleness_ms} ms old and the leading controller was silent for {silence_ms} ms;"
                f" {self._after_ms} ms are allowed"
            )
            return
        # News only makes the ages smaller: no look is needed before the older one reaches the bound.
        self._permitted_until_ns = now_ns + (self._after_ms - max(staleness_ms, silence_ms)) * NS_PER_MS
        self._permit()

    def _withdraw(self, reason: str) -> None:
        if self.refusal is not None:
            return
        self.refusal = reason
        self.epoch += 1
        LOG.warning("this broker stops answering: %s", reason)
        self._tell(withdrawn=True)

    def _permit(self) -> None:
        if self.refusal is None:
            return
        self.refusal = None
        LOG.info("metadata are current again; this broker answers")
        self._tell(withdrawn=False)

    def _tell(self, *, withdrawn: bool) -> None:
        for listener in self.listeners:
            listener(withdrawn)
