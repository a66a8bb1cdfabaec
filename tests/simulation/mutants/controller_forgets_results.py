"""Planted bug: a repeated operation is carried out once more instead of being answered with the kept result."""

from __future__ import annotations

import pytest
from ponor.metadata.v1 import records_pb2
from ponor_controller.kernel.decisions import Decision
from ponor_controller.kernel.executor import Executor
from ponor_controller.kernel.operation import PendingOperation


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def replay(self: Executor, pending: PendingOperation, digest: bytes) -> bool:
        return False

    def propose(self: Executor, pending: PendingOperation, decision: Decision, digest: bytes) -> None:
        records: list[records_pb2.Record] = decision.records
        index = self._proposer.propose(records, divisible=decision.divisible)
        self._answer_later(self._reply(pending, decision.result, index), index)

    monkeypatch.setattr(Executor, "_replay", replay)
    monkeypatch.setattr(Executor, "_propose", propose)
