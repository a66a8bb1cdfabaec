"""Planted bug: an upload is committed although the lease of its objects ran out, or was never given."""

from __future__ import annotations

import pytest
from ponor_controller.domains.objects import uploads


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(uploads, "require_prepared", lambda *_: None)
