"""Planted bug: the disk reports writes as they end, not as they began, and the core believes that a later one covers the earlier."""

from __future__ import annotations

import pytest
from ponor_cluster_simulation.raft_cluster.disk import RaftDisk
from ponor_raft.log_window import LogWindow
from ponor_raft.outbox import Outbox


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test: whatever ended last is reported, and everything before it taken for ended."""
    outbox_persisted, end_write = Outbox.persisted, LogWindow.end_write

    def persisted(self: Outbox, sequence: int) -> None:
        while self._writing and self._writing[0].sequence <= sequence:
            outbox_persisted(self, self._writing[0].sequence)

    def end(self: LogWindow, sequence: int) -> None:
        while self._writes and self._writes[0].sequence <= sequence:
            end_write(self, self._writes[0].sequence)

    def end_newest(self: RaftDisk) -> None:
        newest = self._writes[-1]
        oldest = self._writes.popleft()
        if newest is not oldest:
            report, newest.ended = newest.ended, _nothing
            report()
        self._keep(oldest.content)
        oldest.ended()

    monkeypatch.setattr(Outbox, "persisted", persisted)
    monkeypatch.setattr(LogWindow, "end_write", end)
    monkeypatch.setattr(RaftDisk, "end_oldest", end_newest)


def _nothing() -> None:
    """It was reported already."""
