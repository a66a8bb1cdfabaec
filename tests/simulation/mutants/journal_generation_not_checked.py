"""Planted bug: CRCs are not seeded with the generation and nobody compares it, so a recycled file's old frames still look valid."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ponor_journal import scan, writer
from ponor_journal.format import FrameHeader


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    headers_behind = scan._headers_behind

    def all_headers_behind(
        data: bytes, start: int, _: int, identity: bytes
    ) -> Iterator[tuple[int, FrameHeader] | None]:
        return headers_behind(data, start, 0, identity)

    for module in (scan, writer):
        monkeypatch.setattr(module, "frame_seed", lambda identity, generation: 0)
    monkeypatch.setattr("ponor_journal.format.frame_seed", lambda identity, generation: 0)
    monkeypatch.setattr(scan, "_headers_behind", all_headers_behind)
