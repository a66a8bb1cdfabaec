"""Planted bug: the duty that reclaims trimmed and deleted streams destroys their stream objects and forgets stream set objects."""

from __future__ import annotations

import pytest
from ponor_controller.domains.objects import dead_objects


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(dead_objects, "_dead_set_objects", lambda *_: iter(()))
