"""Planted bug: a compaction that breaks off does not abort its uploads in parts."""

from __future__ import annotations

import pytest
from s3stream.compaction.movement import PartUploads


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    async def abort(_: PartUploads) -> None:
        return

    monkeypatch.setattr(PartUploads, "abort", abort)
