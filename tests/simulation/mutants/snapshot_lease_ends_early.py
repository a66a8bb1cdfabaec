"""Planted bug: renewals are forgotten, and a lease of a snapshot ends half a second after it began: its reader is told that it is over, as if it had not renewed."""

from __future__ import annotations

import pytest
from ponor_controller.domains.leases.duty import LeaseDriver

LIFE_MS = 500


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = LeaseDriver.step

    def step(self: LeaseDriver) -> float | None:
        view, now_ms = self._proposer.view, self._proposer.now_ms()
        due = [row for row in view.snapshots if row.begun_at_ms + LIFE_MS <= now_ms]
        if due:
            self._proposer.propose([self._expire(row) for row in due], divisible=True)
            return 0
        pause_s = correct(self)
        return None if pause_s is None else min(pause_s, LIFE_MS / 1000)

    monkeypatch.setattr(LeaseDriver, "step", step)
