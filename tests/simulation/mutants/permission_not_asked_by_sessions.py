"""Planted bug: a fetch session of before is answered from the partitions that it remembers, with or without permission."""

from __future__ import annotations

import pytest
from ponor_broker.handlers.fetch.fetch import FetchHandler
from ponor_broker.handlers.fetch.fetch_session import FetchSession
from ponor_kafka.errors import ErrorCode
from ponor_kafka.fetch_walk import FetchWalk


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    resume = FetchHandler._resume

    def without_asking(self: FetchHandler, walk: FetchWalk, version: int) -> FetchSession | ErrorCode | None:
        session = self._sessions.find(walk.session_id)
        if session is not None:
            session.serving_epoch = self._serving.epoch
        return resume(self, walk, version)

    monkeypatch.setattr(FetchHandler, "_resume", without_asking)
