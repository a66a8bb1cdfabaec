"""Permission to answer, controlled by a test."""

from __future__ import annotations

from collections.abc import Sequence

from ponor_broker.requests.connection import ConnectionContext
from ponor_broker.serving import Serving
from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer

BOUND_MS = 9_000


class Permission:
    """A `Serving` whose two ages the test sets."""

    def __init__(self, clock: Clock) -> None:
        self.staleness_ms: int | None = 0
        self.silence_ms: int | None = 0
        self.serving = Serving(
            clock, staleness_ms=lambda: self.staleness_ms, silence_ms=lambda: self.silence_ms
        )
        self.serving.limit(BOUND_MS)

    def look(self, staleness_ms: int | None, silence_ms: int | None = 0) -> str | None:
        """Set both ages, and check."""
        self.age(staleness_ms, silence_ms)
        return self.serving.check()

    def age(self, staleness_ms: int | None, silence_ms: int | None = 0) -> None:
        """Set both ages without a check, as after a pause of the process."""
        self.staleness_ms, self.silence_ms = staleness_ms, silence_ms
        self.serving._permitted_until_ns = -1

    def withdraw(self) -> None:
        """The metadata are too old."""
        assert self.look(BOUND_MS + 1) is not None

    def restore(self) -> None:
        """They are current again."""
        assert self.look(0) is None


class PlainReply:
    """A reply to a client of the main listener: a body is its own response."""

    def __init__(self) -> None:
        self.connection = ConnectionContext("peer:1")

    def __call__(self, body: Sequence[Buffer]) -> Sequence[Buffer]:
        return body
