"""Planted bug: entries are acknowledged to the leader while they are still being written."""

from __future__ import annotations

import pytest
from ponor_raft.messages import AppendResponse, Message
from ponor_raft.outbox import Outbox


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = Outbox.send_when_durable

    def send(self: Outbox, message: Message) -> None:
        if isinstance(message, AppendResponse):
            self.send(message)
        else:
            correct(self, message)

    monkeypatch.setattr(Outbox, "send_when_durable", send)
