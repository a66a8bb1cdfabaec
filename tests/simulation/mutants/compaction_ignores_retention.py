"""Planted bug: what a compaction replaced may be deleted at once, while readers with an older image still want it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from ponor_controller.domains.objects import operations as objects
from ponor_controller.kernel.decisions import Situation
from ponor_metadata.rows import NodeRole, ObjectRow


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    due = objects._due_objects

    def due_at_once(situation: Situation) -> Iterator[ObjectRow]:
        is_compacted = any(row.role is NodeRole.COMPACTOR for row in situation.view.nodes)
        delay_ms = 0 if is_compacted else situation.settings.destroy_delay_ms
        return due(replace(situation, settings=replace(situation.settings, destroy_delay_ms=delay_ms)))

    monkeypatch.setattr(objects, "_due_objects", due_at_once)
