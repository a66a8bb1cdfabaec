"""Planted bug: a voter forgets at its next start which committed entries its log lacks."""

from __future__ import annotations

from typing import Any

import pytest
from ponor_raft.replica import Replica


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = Replica.__init__

    def forget(self: Replica, *arguments: Any) -> None:
        correct(self, *arguments)
        self.floor = (0, 0)

    monkeypatch.setattr(Replica, "__init__", forget)
