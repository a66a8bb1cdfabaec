"""Planted bug: streams that an attempt made and no log meta names are never deleted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ponor_broker.partitions.handoff.owned_streams import OwnedStreams
from ponor_broker.partitions.partition import Partition


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    async def delete_unknown(_: OwnedStreams, partitions: Sequence[Partition]) -> Sequence[Partition]:
        return partitions[:0]

    monkeypatch.setattr(OwnedStreams, "delete_unknown", delete_unknown)
