"""The serving lease: whether this broker may answer clients, and if not, why.

A broker that was replaced may not notice this immediately. Produce is safe without this check: the recovery
puts a fence into the broker's write-ahead log in the store, a put after the fence fails, and the broker
acknowledges nothing. Reads, group requests and metadata requests, however, would be answered from stale
memory. Therefore a broker answers only while two ages are within a bound: the age of its metadata (since the
last probe that a controller answered) and the silence of the leading controller.

The controllers may replace a broker from which no heartbeat arrived for the session timeout. The bound is two
thirds of that timeout: a broker sends a heartbeat every third of it, so the last heartbeat that arrived may
be a third older than the last answered probe. If the broker's session broke, the controllers may act earlier;
then reads can be stale until the broker receives the new metadata, or until the bound.

An election of the controllers takes one to two seconds, less than the bound. If there is no leading
controller for longer, no broker can be replaced, but a broker cannot distinguish this from a network
partition and stops answering. No other broker takes over a write-ahead log in a file, so a broker with such a
log does not use the check.

The dispatcher calls `check` before a request starts and again when its answer is ready
(`requests.running_requests`). Partitions and the group coordinator read `refusal`. `/readyz` shows
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.clock import Clock

LOG: Final = logging.getLogger("ponor.broker")
CHECKS_PER_BOUND: Final = 20
"""Checks per `after_ms`: waiting requests are refused at most a twentieth of the bound late."""
AUTOMATIC: Final = -1
NS_PER_MS: Final = 1_000_000


def fence_after_ms(setting_ms: int, wal: WalKind, session_timeout_ms: int) -> int:
    """Return the bound in ms for a broker with this kind of log; 0: no bound."""
    if setting_ms != AUTOMATIC:
        return setting_ms
    return session_timeout_ms * 2 // 3 if wal is WalKind.OBJECT else 0


class Serving:
    """The lease of one broker.

    Attributes:
        refusal: why this broker must not answer, as of the last check; None while it may answer.
        epoch: number of withdrawals. An answer computed in an earlier epoch must not be sent.
        listeners: called after `refusal` changed: with True if permission was withdrawn.
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
        """Set the bound in ms; 0, the initial value: no bound."""
        assert after_ms >= 0
        self._after_ms = after_ms

    def check(self) -> str | None:
        """Compare both ages with the bound and return `refusal`."""
        if self._after_ms and self._clock.monotonic_ns() > self._permitted_until_ns:
            self._look()
        return self.refusal

    async def watch(self) -> None:
        """Check periodically, so that waiting requests are refused in time. Returns if there is no bound."""
        while self._after_ms:
            self.check()
            await self._clock.sleep(self._after_ms / CHECKS_PER_BOUND / 1000)

    def _look(self) -> None:
        now_ns = self._clock.monotonic_ns()
        staleness_ms, silence_ms = self._staleness_ms(), self._silence_ms()
        if staleness_ms is None or silence_ms is None or max(staleness_ms, silence_ms) > self._after_ms:
            self._permitted_until_ns = 0  # check again with every request
            self._withdraw(
                f"age of the metadata: {_shown(staleness_ms)}; silence of the leading controller:"
                f" {_shown(silence_ms)}; the limit is {self._after_ms} ms"
            )
            return
        # Until the larger age can reach the bound, no check is needed.
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
        LOG.info("the metadata are current again; this broker answers again")
        self._tell(withdrawn=False)

    def _tell(self, *, withdrawn: bool) -> None:
        for listener in self.listeners:
            listener(withdrawn)


def _shown(ms: int | None) -> str:
    return "unknown" if ms is None else f"{ms} ms"
