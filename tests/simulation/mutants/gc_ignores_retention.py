"""Planted bug: destroyed objects may be deleted at once, while readers with an older image still want them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from ponor_controller.domains.objects import operations as objects
from ponor_controller.kernel.decisions import Situation
from ponor_metadata.rows import ObjectRow


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    due = objects._due_objects

    def due_at_once(situation: Situation) -> Iterator[ObjectRow]:
        return due(replace(situation, settings=replace(situation.settings, destroy_delay_ms=0)))

    monkeypatch.setattr(objects, "_due_objects", due_at_once)
