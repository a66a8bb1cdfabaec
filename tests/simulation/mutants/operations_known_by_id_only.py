"""Planted bug: a repeated operation is known by its id, whatever it asks for."""

from __future__ import annotations

import pytest
from ponor_controller.kernel import executor
from ponor_controller.kernel.executor import Executor
from ponor_controller.kernel.operation import PendingOperation


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    replay = Executor._replay

    def replay_whatever(self: Executor, pending: PendingOperation, digest: bytes) -> bool:
        view = self._proposer.view
        kept = view.operations.get((pending.caller.node_id, pending.operation.request_id))
        return replay(self, pending, digest if kept is None else kept.digest)

    monkeypatch.setattr(executor.Executor, "_replay", replay_whatever)
