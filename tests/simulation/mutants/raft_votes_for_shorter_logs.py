"""Planted bug: votes are given without looking at the candidate's log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ponor_raft.election import Election
from ponor_raft.messages import VoteRequest


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = Election.answer

    def answer(self: Election, request: VoteRequest) -> None:
        log = self._replica.log
        correct(
            self,
            replace(
                request,
                last_index=max(request.last_index, log.last_index),
                last_term=max(request.last_term, log.last_term),
            ),
        )

    monkeypatch.setattr(Election, "answer", answer)
