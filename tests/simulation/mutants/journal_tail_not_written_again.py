"""Planted bug: a restart trusts unproven frames that it can read, although the sync that wrote them may have failed."""

from __future__ import annotations

import pytest
from ponor_journal import writer
from ponor_journal.recovery import Recovered
from ponor_journal.writer import JournalWriter


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    start = JournalWriter.start

    async def start_without(self: JournalWriter) -> None:
        self._unproven_bytes = b""
        await start(self)

    assert {"unproven"} <= set(Recovered.__slots__)
    monkeypatch.setattr(writer.JournalWriter, "start", start_without)
