"""Planted bug: a partition whose open was refused once is not tried again."""

from __future__ import annotations

import pytest
from ponor_broker.partitions.handoff.handoff_target import Arrivals
from ponor_broker.partitions.handoff.opening import Opening


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    goes_on = Arrivals._goes_on

    def forgets(self: Arrivals, opening: Opening) -> bool:
        return opening.failures == 0 and goes_on(self, opening)

    monkeypatch.setattr(Arrivals, "_goes_on", forgets)
