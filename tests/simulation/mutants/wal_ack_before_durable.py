"""Planted bug: an append to a log in the store is acknowledged when its put begins."""

from __future__ import annotations

import asyncio

import pytest
from s3stream.object_wal.object_wal import ObjectWal, _Slot


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = ObjectWal._begin_put

    def begin_put(self: ObjectWal, slot: _Slot, now_ns: int) -> None:
        correct(self, slot, now_ns)
        waiters, slot.waiters = slot.waiters, []
        for on_durable in waiters:
            asyncio.get_running_loop().call_soon(on_durable, None)

    monkeypatch.setattr(ObjectWal, "_begin_put", begin_put)
