"""Planted bug: a task is known by its number alone, whoever has it and under whichever token: a worker that stood still beyond its lease commits beside the one that took over."""

from __future__ import annotations

import pytest
from ponor_controller.domains.compaction import operations as compaction
from ponor_controller.kernel.decisions import Situation
from ponor_metadata.rows import CompactionRow


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def held(task_id: int, _: int, situation: Situation) -> CompactionRow | None:
        return situation.view.compactions.get(task_id)

    monkeypatch.setattr(compaction, "_held", held)
