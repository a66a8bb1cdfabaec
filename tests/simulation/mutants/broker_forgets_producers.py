"""Planted bug: what producers have sent is not written beside the data, so a restart knows only those whose batches are not uploaded yet."""

from __future__ import annotations

import pytest
from ponor_broker.partitions.state.producer_state import ProducerStates


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(ProducerStates, "restoring", lambda *_: iter(()))
