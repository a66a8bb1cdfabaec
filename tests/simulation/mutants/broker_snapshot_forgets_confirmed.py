"""Planted bug: producers with a batch in flight at one write of the snapshot are left out of the next one, when that batch is durable, while the checkpoint moves past it."""

from __future__ import annotations

import pytest
from ponor_broker.partitions.state.producer_entry import join_rows, split_rows
from ponor_broker.partitions.state.producer_state import ProducerStates


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    change_at = ProducerStates.change_at

    def change_without_confirmed(self: ProducerStates, offset: int) -> bytes:
        left_out = self.__dict__.get("_was_in_flight", set())
        self.__dict__["_was_in_flight"] = {undo.producer_id for undo in self._in_flight or ()}
        _, rows = split_rows(change_at(self, offset))
        return join_rows(offset, [row for producer_id, row in rows if producer_id not in left_out])

    monkeypatch.setattr(ProducerStates, "change_at", change_without_confirmed)
