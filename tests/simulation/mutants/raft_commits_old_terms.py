"""Planted bug: entries of former terms are committed by counting who has them (Figure 8 of the Raft paper)."""

from __future__ import annotations

import pytest
from ponor_raft.replication import Replication


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def advance(self: Replication) -> bool:
        log = self._replica.log
        index = self._reached_by_majority()
        if index <= log.commit:
            return False
        log.commit_to(index)
        return True

    monkeypatch.setattr(Replication, "advance_commit", advance)
