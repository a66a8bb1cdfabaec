"""Planted bug: a new segment's name is not made durable before entries in it are acknowledged."""

from __future__ import annotations

from pathlib import PurePath

import pytest
from ponor_journal.format import live_name
from ponor_journal.segment_files import SegmentFiles


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    async def make_live(self: SegmentFiles, spare: PurePath, generation: int) -> PurePath:
        path = self.directory / live_name(generation)
        await self._disk.rename(spare, path)
        return path

    monkeypatch.setattr(SegmentFiles, "make_live", make_live)
