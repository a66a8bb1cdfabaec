"""Planted bug: garbage is confirmed as deleted although the store did not delete it."""

from __future__ import annotations

from typing import Any

import pytest
from ponor_gc.sweeper import Sweeper


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    delete = Sweeper._delete

    async def delete_hopefully(self: Sweeper, granted: list[Any]) -> bool:
        await delete(self, granted[1:])
        return True

    monkeypatch.setattr(Sweeper, "_delete", delete_hopefully)
