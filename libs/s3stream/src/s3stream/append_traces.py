"""Traces of sampled appends: the span of their group commit, and their links for the upload that contains them.

An append without a trace does not enter this module. The broker decides which requests are sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamId
from ponor_runtime.tracing import LINKS_MAX, AttributeValue, Span, TraceContext

WAITING_MAX: Final = LINKS_MAX
"""Appends that one upload names; later ones of the same block are traced to their acknowledgement only."""


class AppendTraces:
    """Follows appends of one node from the log to the next seal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._durable: list[TraceContext] = []

    def follow(
        self,
        request: Span,
        stream_id: StreamId,
        size_bytes: int,
        on_durable: Callable[[BaseException | None], None],
    ) -> Callable[[BaseException | None], None]:
        """What to call instead of `on_durable`: the same, with a span around the wait."""
        started_ns = self._clock.monotonic_ns()

        def told(error: BaseException | None) -> None:
            attributes: dict[str, AttributeValue] = {
                "ponor.stream.id": stream_id,
                "ponor.append.bytes": size_bytes,
            }
            if error is not None:
                attributes["error.type"] = type(error).__qualname__
            else:
                self._keep(request.context)
            request.step("ponor.wal.commit", started_ns, attributes)
            on_durable(error)

        return told

    def take(self) -> tuple[TraceContext, ...]:
        """The appends that became durable since the last seal that made objects, oldest first."""
        taken, self._durable = tuple(self._durable), []
        return taken

    def _keep(self, context: TraceContext) -> None:
        if len(self._durable) < WAITING_MAX and context not in self._durable:
            self._durable.append(context)
