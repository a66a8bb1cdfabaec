"""Planted bug: a controller that lost its directory forms a new cluster although others hold one."""

from __future__ import annotations

import pytest
from ponor_controller import formation


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(formation, "_refuse_known_cluster", lambda *_: None)
    monkeypatch.setattr(formation, "_is_ready", lambda _, answer: answer is not None)
