"""Planted bug: a batch is committed, answered and published when it is proposed, not when it is durable."""

from __future__ import annotations

import asyncio

import pytest
from ponor_controller.consensus.ports import LogEntry
from ponor_controller.consensus.single_voter import SingleVoter


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def propose(self: SingleVoter, entry: LogEntry) -> None:
        self._log.append(entry).add_done_callback(asyncio.Future.exception)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        self._pending.append((entry, done))
        done.add_done_callback(self._commit)

    monkeypatch.setattr(SingleVoter, "propose", propose)
