"""Planted bugs of reclaiming, snapshot leases and the garbage collector, and their replacements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from ponor_controller.domains.leases.duty import LeaseDuty
from ponor_controller.domains.objects import dead_objects
from ponor_controller.domains.objects import operations as objects
from ponor_controller.kernel.decisions import Situation
from ponor_gc.deletion_right import DeletionRight
from ponor_gc.sweeper import Sweeper
from ponor_metadata.client.store_marker import ClusterMarker
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns import objects as object_rules
from ponor_metadata.nouns.objects import ObjectRow
from ponor_metadata.nouns.snapshot_leases import SNAPSHOTS
from ponor_runtime.identity import ObjectId, StreamId

from tests.simulation.mutants.mutant import Catch, Mutant, Suite, method, used_in

SNAPSHOT_LEASE_MS = 500


_due_objects = objects._due_objects
_delete_granted = Sweeper._delete
_step = LeaseDuty.step


def unclaimed_objects(situation: Situation) -> Iterator[ObjectRow]:
    """`objects._due_objects`."""
    return (row for row in _due_objects(situation) if not row.claimed_until_ms)


def due_at_once(situation: Situation) -> Iterator[ObjectRow]:
    """`objects._due_objects`."""
    return _due_objects(replace(situation, settings=replace(situation.settings, destroy_delay_ms=0)))


async def delete_all_but_one(self: Sweeper, granted: list[Any]) -> bool:
    """`Sweeper._delete`."""
    await _delete_granted(self, granted[1:])
    return True


async def allow_deletion(_: DeletionRight, __: ClusterMarker) -> bool:
    """`DeletionRight.may_delete`."""
    return True


def set_objects_dead_for(image: MetadataImage, stream_ids: Sequence[StreamId]) -> Iterator[ObjectId]:
    """`dead_objects._dead_set_objects` that checks the pieces of these streams only."""
    found: dict[ObjectId, None] = {}
    for stream_id in stream_ids:
        for object_id in map(ObjectId, image.packed_stream_set_objects.ids_with(stream_id)):
            pieces = image.packed_stream_set_objects.pieces_of(object_id)
            end = None if pieces is None else pieces.end_of(stream_id)
            start = dead_objects.start_of(image, stream_id)
            if end is not None and (start is None or end <= start):
                found[object_id] = None
    yield from found


def expire_leases_early(self: LeaseDuty) -> float | None:
    """`LeaseDuty.step`."""
    view, now_ms = self._proposer.view, self._proposer.now_ms()
    due = [row for row in view[SNAPSHOTS] if row.begun_at_ms + SNAPSHOT_LEASE_MS <= now_ms]
    if due:
        self._proposer.propose([self._expire(row) for row in due], divisible=True)
        return 0
    pause_s = _step(self)
    return None if pause_s is None else min(pause_s, SNAPSHOT_LEASE_MS / 1000)


GARBAGE_MUTANTS: Final = (
    Mutant(
        "gc_claim_never_over",
        "Objects that a collector claimed are never granted again, not even to its next process.",
        used_in("_due_objects", unclaimed_objects, objects),
        (Catch(Suite.SWARM, r"invariant 25", 99),),
    ),
    Mutant(
        "gc_confirms_undeleted",
        "Garbage is confirmed as deleted although the store did not delete it.",
        (method(Sweeper._delete, delete_all_but_one),),
        (Catch(Suite.CLUSTER, "never deleted", 0),),
    ),
    Mutant(
        "gc_ignores_marker",
        "A collector deletes objects under a marker of another cluster.",
        (method(DeletionRight.may_delete, allow_deletion),),
    ),
    Mutant(
        "gc_ignores_retention",
        "Destroyed objects may be deleted at once, while readers with an older image still need them.",
        used_in("_due_objects", due_at_once, objects),
        (Catch(Suite.SWARM, r"invariant 24", 1),),
    ),
    Mutant(
        "reclaim_forgets_set_objects",
        "Reclaiming destroys dead stream objects and leaves dead stream set objects.",
        used_in("_dead_set_objects", lambda *_: iter(()), dead_objects),
        (Catch(Suite.SWARM, r"contains no live data", 1),),
    ),
    Mutant(
        "reclaim_destroys_what_other_streams_need",
        "A stream set object is destroyed when its pieces of the reclaimed streams are dead.",
        used_in("_dead_set_objects", set_objects_dead_for, dead_objects),
        (Catch(Suite.SWARM, r"invariant 24", 0),),
    ),
    Mutant(
        "snapshot_lease_ends_early",
        "A snapshot lease ends half a second after it began, although its reader renews it.",
        (method(LeaseDuty.step, expire_leases_early),),
        (Catch(Suite.SWARM, r"invariant 36", 2),),
    ),
    Mutant(
        "snapshot_lease_ignored",
        "Objects destroyed under a snapshot lease may be deleted after the delay.",
        used_in("pinned_since_ms", lambda _: None, objects, object_rules),
        (Catch(Suite.SWARM, r"invariant 36", 2),),
    ),
)
