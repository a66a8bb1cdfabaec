"""Planted bug: a leader that refuses a Hello does not ask whether it still leads, so one that was deposed while it did not run tells living nodes to stop."""

from __future__ import annotations

from typing import Any

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.domains.nodes.registration import register_node
from ponor_controller.server.sessions.session_service import SessionService
from ponor_rpc.errors import OperationError


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = SessionService._register

    async def register(self: SessionService, hello: wire.Hello) -> Any:
        try:
            register_node(hello, self._proposer.view, self._proposer.now_ms())
        except OperationError:
            await self._proposer.committed_up_to(self._proposer.last_index)
            raise
        return await correct(self, hello)

    monkeypatch.setattr(SessionService, "_register", register)
