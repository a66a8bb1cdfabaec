"""Planted bug: what is destroyed under the lease of a snapshot may be deleted when the delay is over."""

from __future__ import annotations

import pytest
from ponor_controller.domains.objects import operations as objects
from ponor_metadata import apply_objects


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test: where objects are chosen, and where the image would notice."""
    monkeypatch.setattr(objects, "pinned_since_ms", lambda _: None)
    monkeypatch.setattr(apply_objects, "pinned_since_ms", lambda _: None)
