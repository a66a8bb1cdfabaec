"""Tests of the lease keeper, with clusters that answer and clusters that do not."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from ponor_spark.lease_keeper import LeaseKeeper
from ponor_spark.lease_notes import LeaseNotes, NotedLease
from ponor_spark.snapshot import Lease

DEADLINE_S = 120.0


def test_unreachable_cluster_does_not_delay_other_leases(tmp_path: Path) -> None:
    renewed = threading.Event()

    class Keeper(LeaseKeeper):
        async def _renew(self, lease: NotedLease) -> None:
            if lease.controllers == ("silent:1",):
                await asyncio.Event().wait()
            renewed.set()

    notes = LeaseNotes(tmp_path)
    notes.note(Lease(9, "", 1, 1, 0, 0), ("alive:1",))
    for number in range(3):  # used last, so checked first
        notes.note(Lease(number, "", 1, 1, 0, 0), ("silent:1",))
    keeper = Keeper(tmp_path)
    try:
        assert renewed.wait(DEADLINE_S)
    finally:
        for each in list(notes.noted()):
            notes.forget(each.lease_id)
        keeper.close()
