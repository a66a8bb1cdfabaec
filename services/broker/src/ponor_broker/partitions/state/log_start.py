"""The log start of a partition: raised by retention and DeleteRecords, never lowered.

A new start becomes visible as soon as it is durable in the Meta stream, even if its caller was
cancelled: no crash reverts a visible start, and no cancelled request hides a start that the next
open will find. Maintenance trims segments and streams later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from ponor_broker.partitions.state.durable_state import DurableState


class LogStart:
    """The log start of one partition; `offset` is the visible one. `on_shown` is called when it
    moved.
    """

    def __init__(self, state: DurableState, on_shown: Callable[[], None]) -> None:
        self._state = state
        self._on_shown = on_shown
        self.offset = state.checkpoint.start_offset
        self._durable: asyncio.Future[None] | None = None

    async def advance(self, offset: int, confirmed_offset: int) -> None:
        """Raise the log start to at least `offset`; return when that is durable. A cancelled call
        reverts nothing.

        Raises:
            S3StreamError: the storage refused the change.
        """
        if offset > self._state.checkpoint.start_offset:
            self._durable = self._state.advance_start(offset, confirmed_offset)
            self._durable.add_done_callback(partial(self._show, offset))
        if offset > self.offset:
            assert self._durable is not None, "a written start that is not visible yet is in flight"
            durable = self._durable
            await asyncio.shield(durable)
            self._show(offset, durable)

    def _show(self, offset: int, durable: asyncio.Future[None]) -> None:
        if not durable.cancelled() and durable.exception() is None and offset > self.offset:
            self.offset = offset
            self._on_shown()
