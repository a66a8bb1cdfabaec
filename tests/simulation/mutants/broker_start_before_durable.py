"""A planted bug: DeleteRecords is answered before the new log start is durable."""

from __future__ import annotations

import asyncio

import pytest
from ponor_broker.partitions.state.durable_state import DurableState


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant it."""
    honest = DurableState.advance_start

    def hasty(self: DurableState, start_offset: int, confirmed_offset: int) -> asyncio.Future[None]:
        honest(self, start_offset, confirmed_offset).add_done_callback(lambda done: done.exception())
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        told.set_result(None)
        return told

    monkeypatch.setattr(DurableState, "advance_start", hasty)
