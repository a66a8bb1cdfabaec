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
    notes.note(Lease(9, "", 1, 1, 0, 0, ("alive:1",)))
    for number in range(3):  # used last, so checked first
        notes.note(Lease(number, "", 1, 1, 0, 0, ("silent:1",)))
    keeper = Keeper(tmp_path)
    try:
        assert renewed.wait(DEADLINE_S)
    finally:
        for each in list(notes.noted()):
            notes.forget(each.lease_id, each.controllers)
        keeper.close()


def test_leases_of_two_clusters_with_the_same_id_are_both_renewed(tmp_path: Path) -> None:
    """Every cluster counts its leases from 1."""
    renewed: dict[tuple[str, ...], None] = {}
    both = threading.Event()

    class Keeper(LeaseKeeper):
        async def _renew(self, lease: NotedLease) -> None:
            renewed[lease.controllers] = None
            if len(renewed) == 2:
                both.set()

    notes = LeaseNotes(tmp_path)
    leases = [Lease(1, "", 1, 1, 0, 0, (address,)) for address in ("first:1", "second:1")]
    for lease in leases:
        notes.note(lease)
    keeper = Keeper(tmp_path)
    try:
        assert both.wait(DEADLINE_S)
        notes.forget(1, leases[0].controllers)
        assert [each.controllers for each in notes.noted()] == [leases[1].controllers]
    finally:
        notes.forget(1, leases[1].controllers)
        keeper.close()
