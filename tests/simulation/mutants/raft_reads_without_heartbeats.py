"""Planted bug: a leader answers reads from its commit index without asking whether it still leads."""

from __future__ import annotations

import pytest
from ponor_raft.membership import ReplicaId
from ponor_raft.reads import ReadRounds, _Read


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = ReadRounds.add

    def add(self: ReadRounds, origin: ReplicaId | None, context: int) -> None:
        if self._replication.has_committed_own_term:
            self._answer(_Read(origin, context), self._replica.log.commit)
        else:
            correct(self, origin, context)

    monkeypatch.setattr(ReadRounds, "add", add)
