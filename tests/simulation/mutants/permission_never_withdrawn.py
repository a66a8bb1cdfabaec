"""Planted bug: a broker that hears no controller goes on answering."""

from __future__ import annotations

import pytest
from ponor_broker.serving import Serving


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(Serving, "check", lambda _: None)
