"""Planted bug: a replica votes for everybody who asks in a term."""

from __future__ import annotations

import pytest
from ponor_raft.election import Election
from ponor_raft.messages import VoteRequest


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = Election.answer

    def answer(self: Election, request: VoteRequest) -> None:
        if not request.pre_vote:
            self._replica.voted_for = None
        correct(self, request)

    monkeypatch.setattr(Election, "answer", answer)
