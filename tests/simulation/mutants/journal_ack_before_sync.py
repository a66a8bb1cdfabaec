"""Planted bug: an entry is acknowledged when its group is formed, not when it is synced."""

from __future__ import annotations

import pytest
from ponor_journal.entry_queue import EntryQueue, QueuedEntry


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    take = EntryQueue.take_group

    def take_and_acknowledge(self: EntryQueue, room_bytes: int) -> list[QueuedEntry]:
        group = take(self, room_bytes)
        for entry in group:
            entry.on_durable(None)
            entry.on_durable = _ignore
        return group

    monkeypatch.setattr(EntryQueue, "take_group", take_and_acknowledge)


def _ignore(_: BaseException | None) -> None:
    """Whoever waits was told already."""
