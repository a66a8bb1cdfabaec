"""Planted bug: objects that a collector claimed are never given to another one, nor to its next life."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ponor_controller.domains.objects import operations as objects
from ponor_controller.kernel.decisions import Situation
from ponor_metadata.rows import ObjectRow


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    due_objects = objects._due_objects

    def unclaimed(situation: Situation) -> Iterator[ObjectRow]:
        return (row for row in due_objects(situation) if not row.claimed_until_ms)

    monkeypatch.setattr(objects, "_due_objects", unclaimed)
