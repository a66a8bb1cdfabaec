"""Planted bug: a refused batch of a producer is forgotten at once, so the one behind it is taken as the producer's first."""

from __future__ import annotations

import pytest
from ponor_broker.partitions.state.refused_sequences import RefusedSequences


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(RefusedSequences, "note", lambda *_: None)
