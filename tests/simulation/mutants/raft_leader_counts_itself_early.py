"""Planted bug: a leader counts its own entries before its disk has them (etcd-io/etcd #14370 for a group of one)."""

from __future__ import annotations

import pytest
from ponor_raft.log_window import LogWindow
from ponor_raft.replication import Replication


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = Replication.advance_commit

    def advance(self: Replication) -> bool:
        log: LogWindow = self._replica.log
        durable, log.durable = log.durable, log.handed_out
        try:
            return correct(self)
        finally:
            log.durable = durable

    monkeypatch.setattr(Replication, "advance_commit", advance)
