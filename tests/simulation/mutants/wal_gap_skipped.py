"""Planted bug: a recovery takes a hole for the end of the log, although a slot above it says that it was acknowledged."""

from __future__ import annotations

import pytest
from s3stream.object_wal.walk import WalWalk


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    async def look_at_nothing(self: WalWalk, hole: int) -> None:
        return None

    monkeypatch.setattr(WalWalk, "_check_nothing_acknowledged_above", look_at_nothing)
