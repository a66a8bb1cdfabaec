"""Where a partition's log begins: moved up by retention and DeleteRecords, never back.

What lives here: the order of things. A new start is written to the Meta stream, and shown once it is durable there, so that no crash takes back what
somebody was told. Segments and streams are trimmed behind it by housekeeping.
"""

from __future__ import annotations

import asyncio

from ponor_broker.partitions.durable_state import DurableState


class LogStart:
    """The log start of one partition; `offset` is the one that is shown."""

    def __init__(self, state: DurableState) -> None:
        self._state = state
        self.offset = state.checkpoint.start_offset
        self._durable: asyncio.Future[None] | None = None

    async def advance(self, offset: int, confirmed_offset: int) -> None:
        """The log begins at `offset`, or above it if it does already; returns when that is durable.

        Raises:
            S3StreamError: the storage did not take it.
        """
        if offset > self._state.checkpoint.start_offset:
            self._durable = self._state.advance_start(offset, confirmed_offset)
        if offset > self.offset:
            assert self._durable is not None, "what is written and not shown is on its way"
            await asyncio.shield(self._durable)
            self.offset = max(self.offset, offset)
