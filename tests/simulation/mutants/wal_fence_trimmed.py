"""Planted bug: who recovered a log in the store deletes its fence with the slots (the first hole that the model of the protocol found)."""

from __future__ import annotations

import pytest
from s3stream import takeover
from s3stream.object_wal.slot_keys import slot_key
from s3stream.object_wal.walk import WalWalk


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    correct = takeover._Takeover._delete

    async def delete_with_fence(self: takeover._Takeover, walk: WalWalk) -> None:
        await correct(self, walk)
        await self._store.delete([slot_key(self._wal.name, walk.end_sequence)])

    monkeypatch.setattr(takeover._Takeover, "_delete", delete_with_fence)
