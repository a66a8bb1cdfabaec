"""The ledger of objects from preparation to removal: invariants 20 to 24."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ponor.metadata.v1 import records_pb2 as records
from ponor_metadata.tables.ranges import PackedRanges
from ponor_runtime.identity import ObjectId
from ponor_simulation.object_store import SimBucket
from s3stream.objects.keys import object_key, parse_object_key

from ponor_cluster_simulation.invariants.registry import Checks
from ponor_cluster_simulation.invariants.stream_ledger import Actor, Piece, Place, StreamLedger
from ponor_cluster_simulation.protocols.objects import Phase


@dataclass(slots=True)
class ObjectPage:
    """What is known of an object."""

    namespace: str
    writer: Actor
    expires_at_ms: int
    phase: Phase = Phase.PREPARED
    destroyed_at_ms: int = 0
    claimed_until_ms: int = 0
    committed_at_index: int = 0
    """0 if the object was never committed."""
    destroyed_at_index: int = 0
    size_bytes: int = 0
    """Size at the commit."""
    pieces: list[tuple[int, Piece]] = field(default_factory=list)
    """(stream, piece)."""


class ObjectLedger:
    """The ledger of objects.

    Args:
        bucket: the store; None if it cannot be observed.
        destroy_delay_ms: minimum time between the destruction and the claim of an object.
    """

    def __init__(
        self, checks: Checks, streams: StreamLedger, bucket: SimBucket | None, destroy_delay_ms: int
    ) -> None:
        self._checks = checks
        self._streams = streams
        self._bucket = bucket
        self._destroy_delay_ms = destroy_delay_ms
        self.objects: dict[int, ObjectPage] = {}
        self.before_removal: Callable[[int, ObjectPage, str], None] = lambda *_: None
        """Called before each object is claimed, or deleted from the bucket."""
        self._highest_id = -1

    # Records

    def objects_prepared(self, record: records.ObjectsPrepared, _: Place) -> None:
        """Record new ids."""
        writer = Actor(record.node_id, record.node_epoch)
        self._checks.require(
            20,
            record.first_object_id > self._highest_id,
            f"object ids from {record.first_object_id} on were prepared after id {self._highest_id}",
        )
        self._checks.require(
            14,
            self._streams.is_current(writer),
            f"objects were prepared for {writer}, which is fenced or replaced",
        )
        for object_id in range(record.first_object_id, record.first_object_id + record.count):
            self.objects[object_id] = ObjectPage(record.namespace, writer, record.expires_at_ms)
            self._highest_id = object_id

    def stream_object_committed(self, record: records.StreamObjectCommitted, place: Place) -> None:
        """Check the commit of a stream object."""
        piece = Piece(record.object_id, record.start_offset, record.end_offset)
        self._committed(record, [(record.stream_id, piece)], place)

    def stream_set_object_committed(self, record: records.StreamSetObjectCommitted, place: Place) -> None:
        """Check the commit of a stream set object."""
        pieces = [
            (int(each.stream_id), Piece(record.object_id, each.start_offset, each.end_offset))
            for each in PackedRanges(record.packed_ranges).decoded
        ]
        self._committed(record, pieces, place)

    def objects_destroyed(self, record: records.ObjectsDestroyed, place: Place) -> None:
        """Record destroyed objects; `destroyed_are_dead` checks them after the batch.

        The sources of a swap are not checked: its outputs replace their live data.
        """
        for object_id in record.object_ids:
            self._move(object_id, (Phase.PREPARED, Phase.COMMITTED), Phase.DESTROYED)
            self.objects[object_id].destroyed_at_ms = record.destroyed_at_ms
            self.objects[object_id].destroyed_at_index = place.index
        place.destroyed.extend(each for each in record.object_ids if each not in place.replaced)

    def destroyed_are_dead(self, object_ids: Iterable[int]) -> None:
        """Check that no stream needs the destroyed objects."""
        for object_id in object_ids:
            for stream_id, piece in self.objects[object_id].pieces:
                alive = self._streams.is_alive(stream_id, piece)
                self._checks.require(
                    24,
                    not alive,
                    f"object {object_id} was destroyed, but stream {stream_id} still needs its {piece}",
                )

    def objects_claimed(self, record: records.ObjectsClaimed, place: Place) -> None:
        """Check a claim for deletion."""
        now_ms = place.now_ms
        for object_id in record.object_ids:
            page = self._page(object_id)
            self.before_removal(object_id, page, "claimed")
            if page.phase is Phase.PREPARED:
                age_ms = now_ms - page.expires_at_ms
                self._checks.require(
                    24,
                    age_ms > self._destroy_delay_ms,
                    f"object {object_id} was claimed {age_ms} ms after the end of its lease",
                )
                page.phase, page.destroyed_at_ms = Phase.DESTROYED, now_ms
            else:
                self._checks.require(
                    21,
                    page.phase is Phase.DESTROYED,
                    f"object {object_id} was claimed in phase {page.phase.name}",
                )
                age_ms = now_ms - page.destroyed_at_ms
                due = age_ms > self._destroy_delay_ms or page.claimed_until_ms > 0
                self._checks.require(
                    24, due, f"object {object_id} was claimed {age_ms} ms after it was destroyed"
                )
                self._checks.require(
                    24,
                    page.claimed_until_ms < now_ms,
                    f"object {object_id} was claimed before its earlier claim ended",
                )
            page.claimed_until_ms = record.claimed_until_ms

    def objects_removed(self, record: records.ObjectsRemoved, _: Place) -> None:
        """Check the removal of rows after deletion."""
        for object_id in record.object_ids:
            page = self._page(object_id)
            self._checks.require(
                24, page.claimed_until_ms > 0, f"object {object_id} was removed without a claim"
            )
            self._move(object_id, (Phase.DESTROYED,), Phase.GONE)

    # The bucket

    def deleted(self, key: str) -> None:
        """Check the deletion of an object from the bucket."""
        _, object_id = parse_object_key(key)
        page = self._page(object_id)
        self.before_removal(object_id, page, "deleted")
        allowed = page.phase in {Phase.DESTROYED, Phase.GONE} and page.claimed_until_ms > 0
        self._checks.require(
            24, allowed, f"object {object_id} was deleted in phase {page.phase.name}, or without a claim"
        )

    def referred(self) -> dict[str, int]:
        """Keys and ids of all committed objects."""
        return {
            object_key(page.namespace, ObjectId(object_id)): object_id
            for object_id, page in self.objects.items()
            if page.phase is Phase.COMMITTED
        }

    def destroyed_bytes_since(self, begun_at_ms: int) -> int:
        """Bytes of objects that were destroyed at or after `begun_at_ms`."""
        return sum(
            page.size_bytes
            for page in self.objects.values()
            if page.phase >= Phase.DESTROYED and page.destroyed_at_ms >= begun_at_ms
        )

    def _committed(
        self,
        record: records.StreamObjectCommitted | records.StreamSetObjectCommitted,
        pieces: list[tuple[int, Piece]],
        place: Place,
    ) -> None:
        """Check a commit. The output of a compaction extends no stream."""
        object_id, size_bytes = record.object_id, record.size_bytes
        page = self._page(object_id)
        self._checks.require(
            21, page.phase is Phase.PREPARED, f"object {object_id} was committed in phase {page.phase.name}"
        )
        self._checks.require(
            21,
            page.expires_at_ms >= record.committed_at_ms,
            f"object {object_id} was committed after it expired",
        )
        page.phase, page.pieces, page.committed_at_index = Phase.COMMITTED, pieces, place.index
        page.size_bytes = size_bytes
        for stream_id, piece in pieces:
            self._checks.require(
                23,
                page.phase is Phase.COMMITTED,
                f"stream {stream_id} refers to object {object_id}, which is not committed",
            )
            if place.swap is None:
                self._streams.committed(stream_id, piece, place.actor, page.writer)
        if self._bucket is not None:
            stored = self._bucket.objects.get(object_key(page.namespace, ObjectId(object_id)))
            found = "nothing" if stored is None else f"{len(stored)} bytes"
            fits = stored is not None and len(stored) == size_bytes
            self._checks.require(
                22,
                fits,
                f"object {object_id} was committed with {size_bytes} bytes, but the store has {found}",
            )

    def _move(self, object_id: int, before: tuple[Phase, ...], after: Phase) -> None:
        page = self._page(object_id)
        self._checks.require(
            21, page.phase in before, f"object {object_id} went from {page.phase.name} to {after.name}"
        )
        page.phase = after

    def _page(self, object_id: int) -> ObjectPage:
        page = self.objects.get(object_id)
        self._checks.require(20, page is not None, f"object {object_id} was never prepared")
        assert page is not None
        return page
