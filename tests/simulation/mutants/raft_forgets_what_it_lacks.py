"""Planted bug: a voter does not keep in mind which committed entries its log lacks."""

from __future__ import annotations

import pytest
from ponor_raft.replica import Replica


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(Replica, "raise_floor", lambda self, term, index: None)
