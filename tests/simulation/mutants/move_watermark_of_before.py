"""Planted bug: a broker that gets a partition back tells the high watermark that it knew when it gave it away, until something is appended."""

from __future__ import annotations

import pytest
from ponor_broker.partitions.partition import Partition
from ponor_simulation.loop import INCARNATION


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""
    told: dict[tuple[object, object, int], tuple[int, int]] = {}

    def high_watermark(self: Partition) -> int:
        life, now = INCARNATION.get(), self.log.confirmed_offset
        name = (life, self.identity.topic_id, self.identity.index)
        epoch, known = told.get(name, (self.leader_epoch, now))
        if epoch < self.leader_epoch and self.log.end_offset == now and now > known:
            return known
        told[name] = (self.leader_epoch, now)
        return now

    monkeypatch.setattr(Partition, "high_watermark", property(high_watermark))
