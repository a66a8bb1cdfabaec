"""Leader duty: destroy objects without live data, delete streams and keys of deleted topics; in bounded
steps.

A trim or a deletion destroys no objects itself. Rows (`reclaims`, `deletions`) hold the remaining work,
so a new leader continues it. At the beginning of each term and once an hour, the duty searches for
orphans (streams and keys whose topic does not exist) and deletes them in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Final

from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_metadata.nouns.streams import RECLAIMS, STREAMS
from ponor_metadata.nouns.topics import DELETIONS
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock
from ponor_runtime.identity import ObjectId, StreamId
from ponor_runtime.telemetry import Telemetry

from ponor_controller.domains.objects.dead_objects import dead_objects, start_of
from ponor_controller.domains.objects.topic_purge import find_orphans, purge
from ponor_controller.kernel.leading import Leading
from ponor_controller.kernel.proposer import Proposer

LOG: Final = logging.getLogger("ponor.controller")
WAKING: Final = ("topic_deleted", "orphans_found", "stream_trimmed", "stream_deleted", "objects_destroyed")
"""Records after which the duty runs."""
VISITS_PER_STEP: Final = 1_000
"""Rows and pieces that one step reads."""
DESTROYED_PER_STEP: Final = 125
"""Objects that one batch destroys. Every subscriber applies a batch in one turn of its event loop."""
PIECES_DESTROYED_PER_STEP: Final = 2_000
"""Pieces of all stream set objects that one batch destroys; an object with more pieces gets its own batch."""
PURGED_PER_STEP: Final = 250
"""Streams and keys that one batch deletes."""
TOPICS_PER_STEP: Final = 50
"""Deleted topics that one step purges. One topic per step was too slow: 12 small topics per second."""
STREAMS_PER_PASS: Final = 4_096
"""Streams that are reclaimed together, so that each stream set object is read once for all of them."""
PAUSE_S: Final = 0.02
"""Pause between two steps, in addition to `leader_duty.PAUSE_S`."""
ORPHANS_EVERY_S: Final = 3_600.0


class _Pass:
    """A search for dead objects of some streams. A new leader starts the search again."""

    def __init__(self, found: Iterator[ObjectId | None], starts: dict[StreamId, int | None]) -> None:
        self.found = found
        self.starts = starts
        """Start of each stream when the search began; None if it was deleted."""
        self.left_over: tuple[ObjectId, ...] = ()
        """An object that the previous step found, but that did not fit into its batch."""


class ReclaimDuty:
    """A step of a `LeaderDuty`."""

    def __init__(self, proposer: Proposer, leading: Leading, clock: Clock, telemetry: Telemetry) -> None:
        self._proposer = proposer
        self._clock = clock
        self._pass: _Pass | None = None
        self._orphans: Iterator[bytes | None] | None = None
        self._orphans_due_ns = 0
        self._proposed_index = 0
        self._turn = 0
        self._destroyed = telemetry.counter("ponor_controller_objects_reclaimed_total")
        image = proposer.view.image
        telemetry.gauge("ponor_controller_streams_to_reclaim", lambda: len(image[RECLAIMS]))
        telemetry.gauge("ponor_controller_topic_deletions", lambda: len(image[DELETIONS]))
        leading.on_change(self._restart)

    def step(self) -> float | None:
        """Propose one batch of bounded size. Returns the seconds until the next step."""
        if self._proposer.view.image.index < self._proposed_index:
            return PAUSE_S  # the last batch is not committed yet
        records = self._next_duty()()
        if records:
            try:
                self._proposed_index = self._proposer.propose(records)
            except OperationError:  # the objects that the search found were not destroyed
                self._pass = None
                raise
        image = self._proposer.view.image
        if records or len(image[DELETIONS]) or len(image[RECLAIMS]) or self._orphans is not None:
            return PAUSE_S
        return max(0.0, (self._orphans_due_ns - self._clock.monotonic_ns()) / 1e9)

    def _next_duty(self) -> Callable[[], list[records_pb2.Record]]:
        """Choose the work of this step. Kinds of work take turns, so that topic deletions do not delay
        trims.
        """
        image = self._proposer.view.image
        duties = [self._purge] if len(image[DELETIONS]) else []
        if len(image[RECLAIMS]):
            duties.append(self._reclaim)
        if self._orphans is not None or self._clock.monotonic_ns() >= self._orphans_due_ns:
            duties.append(self._adopt_orphans)
        self._turn += 1
        return duties[(self._turn - 1) % len(duties)] if duties else list

    def _restart(self) -> None:
        self._pass = self._orphans = None
        self._orphans_due_ns = self._proposed_index = 0

    def _purge(self) -> list[records_pb2.Record]:
        view = self._proposer.view
        records: list[records_pb2.Record] = []
        for row in view.image[DELETIONS].after(None, TOPICS_PER_STEP):
            records += purge(view, row.topic_id, PURGED_PER_STEP - len(records))
            if len(records) == PURGED_PER_STEP:
                break
        return records

    def _reclaim(self) -> list[records_pb2.Record]:
        view = self._proposer.view
        if self._pass is None:
            ids = [row.stream_id for row in view.image[RECLAIMS].after(None, STREAMS_PER_PASS)]
            starts = {stream_id: start_of(view.image, stream_id) for stream_id in ids}
            self._pass = _Pass(dead_objects(view.image, ids), starts)
        dead, is_over = self._search(self._pass)
        records: list[records_pb2.Record] = []
        if dead:
            self._destroyed.add(len(dead))
            destroyed = records_pb2.ObjectsDestroyed(object_ids=dead, destroyed_at_ms=self._proposer.now_ms())
            records.append(records_pb2.Record(objects_destroyed=destroyed))
        if is_over:
            records += self._finish(self._pass)
            self._pass = None
        return records

    def _search(self, search: _Pass) -> tuple[list[ObjectId], bool]:
        """Continue the search for one step. Returns the dead objects for one batch, and whether the search is
        complete.
        """
        objects, dead, pieces = self._proposer.view[OBJECTS], list[ObjectId](), 0
        left_over, search.left_over = search.left_over, ()
        for visits, found in enumerate(chain(left_over, search.found), 1):
            # A compaction may have destroyed the object since the search found it.
            row = None if found is None else objects.get(found)
            if found is not None and row is not None and row.state is ObjectState.COMMITTED:
                several = self._proposer.view.image.packed_stream_set_objects.pieces_of(found)
                pieces += 0 if several is None else len(several)
                if dead and pieces > PIECES_DESTROYED_PER_STEP:
                    search.left_over = (found,)
                    return dead, False
                dead.append(found)
            if visits >= VISITS_PER_STEP or len(dead) >= DESTROYED_PER_STEP:
                return dead, False
        return dead, True

    def _finish(self, search: _Pass) -> list[records_pb2.Record]:
        """The record that removes the searched streams from `reclaims`, except streams that were trimmed or
        deleted since the search began.
        """
        view = self._proposer.view
        done = []
        for stream_id, start in search.starts.items():
            stream = view[STREAMS].get(stream_id)
            if (None if stream is None else stream.start_offset) == start:
                done.append(stream_id)
        if not done:
            return []
        return [records_pb2.Record(streams_reclaimed=records_pb2.StreamsReclaimed(stream_ids=done))]

    def _adopt_orphans(self) -> list[records_pb2.Record]:
        if self._orphans is None:
            self._orphans = find_orphans(self._proposer.view)
            self._orphans_due_ns = self._clock.monotonic_ns() + round(ORPHANS_EVERY_S * 1e9)
        visited = list(islice(self._orphans, VISITS_PER_STEP))
        if len(visited) < VISITS_PER_STEP:
            self._orphans = None
        orphaned = dict.fromkeys(topic_id for topic_id in visited if topic_id is not None)
        for topic_id in orphaned:
            LOG.warning("deleting the streams and keys of topic %s, which does not exist", topic_id.hex())
        return [
            records_pb2.Record(orphans_found=records_pb2.OrphansFound(topic_id=topic_id))
            for topic_id in orphaned
        ]
