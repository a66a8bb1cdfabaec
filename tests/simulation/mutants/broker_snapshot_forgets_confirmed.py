"""Planted bug: a producer snapshot that left out a batch in flight is not written again when that batch is durable, while the checkpoint moves past it."""

from __future__ import annotations

import pytest
from ponor_broker.partitions.producer_state import ProducerStates


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    confirm = ProducerStates.confirm

    def confirm_unnoticed(self: ProducerStates, end_offset: int) -> None:
        changes = self.changes
        confirm(self, end_offset)
        self.changes = changes

    monkeypatch.setattr(ProducerStates, "confirm", confirm_unnoticed)
