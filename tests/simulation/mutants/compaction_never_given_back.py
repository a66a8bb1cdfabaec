"""Planted bug: a task whose worker is gone stays that worker's."""

from __future__ import annotations

import pytest
from ponor_controller.domains.compaction import duty as compaction_driver
from ponor_controller.domains.compaction import operations as compaction


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    for module in (compaction, compaction_driver):
        monkeypatch.setattr(module, "is_vacant", lambda *_: False)
