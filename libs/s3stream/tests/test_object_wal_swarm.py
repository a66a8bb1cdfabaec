"""Random faults of brokers without disks: every acknowledged record is committed exactly once and in
order.
"""

from __future__ import annotations

import os

import pytest
from ponor_simulation.simulation import SimulationFailedError
from s3stream.object_wal.object_wal import ObjectWal
from s3stream.object_wal.slot_deletion import SlotDeletion
from s3stream.object_wal.slot_put import SlotPut

from libs.s3stream.tests.diskless_world import DisklessWorld

SEEDS = int(os.environ.get("PONOR_SEEDS", "6"))


@pytest.mark.parametrize("verify", [False, True], ids=["condition", "verified"])
def test_nothing_acknowledged_is_lost(verify: bool) -> None:
    acknowledged = recovered = fences = 0
    for seed in range(SEEDS):
        world = DisklessWorld(seed, verify=verify)
        world.simulation.run(world.scenario())
        acknowledged += sum(len(history.acknowledged) for history in world.histories.values())
        recovered += world.recovered_records
        fences += world.fences
    assert acknowledged > 200 * SEEDS
    assert recovered > 5 * SEEDS
    assert fences > SEEDS


def noticed(seeds: int, first: int = 0) -> str:
    """Run seeds until a check fails, starting with the recorded one; return the failure."""
    for seed in (first, *range(seeds)):
        world = DisklessWorld(seed)
        try:
            world.simulation.run(world.scenario())
        except SimulationFailedError as error:
            return str(error)
    return ""


def test_a_broken_read_back_of_a_taken_key_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_own(self: SlotPut, key: str, label: object) -> bool:
        return True

    monkeypatch.setattr(SlotPut, "_is_own", is_own)
    assert "lost: " in noticed(60, first=31)


def test_a_deletion_of_slots_before_the_commit_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledge = ObjectWal._acknowledge

    def acknowledge_and_delete(self: ObjectWal, below: int) -> None:
        acknowledge(self, below)
        SlotDeletion.delete_below(self._deletion, below)

    monkeypatch.setattr(ObjectWal, "_acknowledge", acknowledge_and_delete)
    assert "the trim point went back" in noticed(60)


def test_acknowledgements_out_of_order_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ObjectWal,
        "_confirmed_below",
        lambda self: max((slot.sequence + 1 for slot in self._in_flight if slot.confirmed), default=0),
    )
    assert "acknowledged before it is confirmed" in noticed(60)
