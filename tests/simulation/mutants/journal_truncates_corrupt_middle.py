"""Planted bug: a log is cut off at the first frame that is not intact, whatever stands behind it."""

from __future__ import annotations

import pytest
from ponor_journal import scan


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(scan, "_judge_tail", lambda *_: iter(()))
