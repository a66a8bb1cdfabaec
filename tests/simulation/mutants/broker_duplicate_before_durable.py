"""Planted bug: a repeated batch is acknowledged at once, while its first append is still on its way to the disk."""

from __future__ import annotations

import pytest
from ponor_broker.partitions.partition import Partition


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    monkeypatch.setattr(Partition, "_tell_of_first", lambda _self, _offset, on_settled: on_settled(None))
