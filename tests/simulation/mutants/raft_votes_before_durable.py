"""Planted bug: a vote leaves before it is on the disk; after a crash the replica votes again in the same term."""

from __future__ import annotations

import pytest
from ponor_raft.messages import Message, VoteRequest, VoteResponse
from ponor_raft.outbox import Outbox


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = Outbox.send_when_durable

    def send(self: Outbox, message: Message) -> None:
        if isinstance(message, VoteRequest | VoteResponse):
            self.send(message)
        else:
            correct(self, message)

    monkeypatch.setattr(Outbox, "send_when_durable", send)
