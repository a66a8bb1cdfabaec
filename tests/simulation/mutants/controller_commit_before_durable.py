"""Planted bug: a batch counts as durable when it is handed to the log, so it is committed, answered and published before it is on the disk."""

from __future__ import annotations

import asyncio

import pytest
from ponor_controller.consensus.record_log import OnDurable, RecordLog
from ponor_raft.entry import Entry, HardState


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    right = RecordLog.persist

    def persist(
        self: RecordLog, hard_state: HardState | None, entries: tuple[Entry, ...], on_durable: OnDurable
    ) -> None:
        right(self, hard_state, entries, lambda error: None)
        asyncio.get_running_loop().call_soon(on_durable, None)

    monkeypatch.setattr(RecordLog, "persist", persist)
