"""Planted bug: a change of the producer snapshot leaves out producers that rested before they were used again, so a restart knows their batches of before."""

from __future__ import annotations

import pytest
from ponor_broker.partitions.state.producer_entry import ProducerEntry
from ponor_broker.partitions.state.producer_state import ProducerStates


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    known = ProducerStates._known
    rest = ProducerStates.rest

    def known_and_remembered(self: ProducerStates, producer_id: int) -> ProducerEntry | None:
        if producer_id in self._resting:
            self.__dict__.setdefault("_rested_before", set()).add(producer_id)
        return known(self, producer_id)

    def rest_without_them(self: ProducerStates, limit: int = 500) -> bool:
        more = rest(self, limit)
        rested = self.__dict__.get("_rested_before", set())
        self._unwritten = [row for row in self._unwritten if int.from_bytes(row[:8], "big") not in rested]
        return more

    monkeypatch.setattr(ProducerStates, "_known", known_and_remembered)
    monkeypatch.setattr(ProducerStates, "rest", rest_without_them)
