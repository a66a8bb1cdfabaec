"""Planted bug: a collector deletes under a marker of another cluster."""

from __future__ import annotations

import pytest
from ponor_gc.deletion_right import DeletionRight
from ponor_metadata.store_marker import ClusterMarker


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    async def may_delete(_: DeletionRight, __: ClusterMarker) -> bool:
        return True

    monkeypatch.setattr(DeletionRight, "may_delete", may_delete)
