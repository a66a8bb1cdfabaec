"""Planted bug: the group coordinator answers from memory, with or without permission."""

from __future__ import annotations

import pytest
from ponor_broker.groups.coordinator import GroupCoordinator


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(GroupCoordinator, "refusal", None)
