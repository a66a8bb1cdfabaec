"""Planted bug: a leader does not compare its log with what nodes have seen, so an older copy of its directory goes on unnoticed."""

from __future__ import annotations

import pytest
from ponor_controller.server.sessions import session_service


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(session_service, "lost_history", lambda *_: "")
