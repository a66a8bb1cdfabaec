"""Where a partition's log begins: moved up by retention and DeleteRecords, never back.

A new start is written to the Meta stream, and shown as soon as it is durable there, whether or not somebody still waits for that: no crash takes back what
somebody was told, and no cancelled request hides what the next open will find. Segments and streams are trimmed behind it by housekeeping.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from ponor_broker.partitions.state.durable_state import DurableState


class LogStart:
    """The log start of one partition; `offset` is the one that is shown. `on_shown` is called when it has moved."""

    def __init__(self, state: DurableState, on_shown: Callable[[], None]) -> None:
        self._state = state
        self._on_shown = on_shown
        self.offset = state.checkpoint.start_offset
        self._durable: asyncio.Future[None] | None = None

    async def advance(self, offset: int, confirmed_offset: int) -> None:
        """The log begins at `offset`, or above it if it does already; returns when that is durable. A cancelled call takes nothing back.

        Raises:
            S3StreamError: the storage did not take it.
        """
        if offset > self._state.checkpoint.start_offset:
            self._durable = self._state.advance_start(offset, confirmed_offset)
            self._durable.add_done_callback(partial(self._show, offset))
        if offset > self.offset:
            assert self._durable is not None, "a start that is written and not shown is on its way"
            durable = self._durable
            await asyncio.shield(durable)
            self._show(offset, durable)

    def _show(self, offset: int, durable: asyncio.Future[None]) -> None:
        if not durable.cancelled() and durable.exception() is None and offset > self.offset:
            self.offset = offset
            self._on_shown()
