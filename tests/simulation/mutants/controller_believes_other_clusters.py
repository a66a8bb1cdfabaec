"""Planted bug: a leader compares its log with what nodes of other clusters have seen, and then admits no node."""

from __future__ import annotations

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.server.sessions.session_service import SessionService


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = SessionService._contradiction

    def contradiction(self: SessionService, hello: wire.Hello) -> str:
        of_nobody = wire.Hello()
        of_nobody.CopyFrom(hello)
        of_nobody.ClearField("cluster_id")
        return correct(self, of_nobody)

    monkeypatch.setattr(SessionService, "_contradiction", contradiction)
