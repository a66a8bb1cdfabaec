"""Planted bug: an upload is committed whoever owns its streams, and under whichever epoch."""

from __future__ import annotations

import pytest
from ponor_controller.domains.objects import uploads


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(uploads, "require_owner", lambda *_: None)
