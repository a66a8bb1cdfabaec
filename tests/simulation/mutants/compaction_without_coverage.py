"""Planted bug: outputs are committed in the place of the sources whatever they hold, and a worker that plans loses a block now and then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from ponor_controller.domains.compaction import operations as compaction
from s3stream.compaction import copy_planning, planning
from s3stream.compaction.sources import SourceBlock, live_blocks


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def forgetful(*args: Any) -> Sequence[SourceBlock]:
        found = live_blocks(*args)
        return found[:-1] if len(found) > 4 else found

    monkeypatch.setattr(compaction, "find_difference", lambda *_, **__: None)
    monkeypatch.setattr(planning, "live_blocks", forgetful)
    monkeypatch.setattr(copy_planning, "live_blocks", forgetful)
