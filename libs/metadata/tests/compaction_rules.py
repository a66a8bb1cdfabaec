"""Rules of the metadata's state machine test: compactions and snapshot leases."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from ponor_metadata.image.read_index import find_pieces
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.compactions import COMPACTIONS, COMPACTIONS_OF_SOURCE, CompactionKind, CompactionRow
from ponor_metadata.nouns.objects import (
    OBJECTS,
    STREAM_SET_OBJECTS,
    STREAM_SET_OBJECTS_AT,
    ObjectState,
)
from ponor_metadata.nouns.snapshot_leases import SNAPSHOTS
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAM_OBJECTS_OF, STREAMS
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId, ObjectId, StreamId

from libs.metadata.tests.metadata_kit import (
    COMPACTOR,
    compaction_ended,
    compaction_leased,
    compaction_renewed,
    destroyed,
    prepared,
    snapshot_leased,
    snapshot_released,
    snapshot_renewed,
    so,
    sso,
)
from libs.metadata.tests.storage_rules import NODES, StorageRules, picks


def offsets_found(view: View, runs: list[tuple[StreamId, int, int]]) -> list[list[tuple[int, int]]]:
    """Return the offsets that the read index finds of each run above its stream's start, joined over
    objects.
    """
    found: list[list[tuple[int, int]]] = []
    for stream_id, start, end in runs:
        row = view[STREAMS].get(stream_id)
        assert row is not None
        joined: list[tuple[int, int]] = []
        for piece in find_pieces(view, stream_id, max(start, row.start_offset), end, limit=1_000):
            if joined and joined[-1][1] == piece.start_offset:
                joined[-1] = (joined[-1][0], piece.end_offset)
            else:
                joined.append((piece.start_offset, piece.end_offset))
        found.append(joined)
    return found


class CompactionRules(StorageRules):
    @rule(node_id=st.sampled_from(NODES), count=st.integers(1, 4), skip=st.integers(0, 2))
    def lease_set_objects(self, node_id: NodeId, count: int, skip: int) -> None:
        found = self.overlay[STREAM_SET_OBJECTS].find(STREAM_SET_OBJECTS_AT, node_id)
        free = [row.object_id for row in found if self.is_free(row.object_id)][skip : skip + count]
        if free:
            self.lease(CompactionKind.SET_OBJECTS, free, node_id=node_id)

    @rule(pick=picks, count=st.integers(2, 4))
    def lease_stream_objects(self, pick: int, count: int) -> None:
        row = self.pick(list(self.overlay[STREAMS]), pick)
        found = [] if row is None else self.overlay[STREAM_OBJECTS].find(STREAM_OBJECTS_OF, row.stream_id)
        free = [each.object_id for each in found if self.is_free(each.object_id)][:count]
        if free:
            self.lease(CompactionKind.STREAM_OBJECTS, free, stream_id=row.stream_id)

    def is_free(self, object_id: ObjectId) -> bool:
        return not self.overlay[COMPACTIONS].find(COMPACTIONS_OF_SOURCE, object_id)

    def lease(
        self, kind: CompactionKind, sources: list[ObjectId], node_id: int = -1, stream_id: int = -1
    ) -> None:
        task_id = counters.next_value(self.overlay, counters.COMPACTION)
        self.propose(compaction_leased(task_id, *sources, kind=kind, node_id=node_id, stream_id=stream_id))

    @rule(pick=picks, step=st.integers(1, 50))
    def go_on_with_compaction(self, pick: int, step: int) -> None:
        """Renew the task, or lease it again if sources were destroyed meanwhile."""
        row: CompactionRow | None = self.pick(list(self.overlay[COMPACTIONS]), pick)
        if row is None:
            return
        left = [each for each in row.source_ids if self.is_committed(each)]
        if len(left) == len(row.source_ids):
            self.propose(compaction_renewed(row.task_id, row.leased_until_ms + step))
        elif left:
            anew = compaction_leased(
                row.task_id,
                *left,
                token=row.token + 1,
                kind=row.kind,
                node_id=row.node_id,
                stream_id=row.stream_id,
            )
            self.propose(anew)

    def is_committed(self, object_id: ObjectId) -> bool:
        row = self.overlay[OBJECTS].get(object_id)
        return row is not None and row.state is ObjectState.COMMITTED

    @rule(pick=picks, split=st.booleans())
    def end_compaction(self, pick: int, split: bool) -> None:
        """Commit the live data of the sources as new objects, by stream or together.

        The read index must find the same offsets.
        """
        row: CompactionRow | None = self.pick(list(self.overlay[COMPACTIONS]), pick)
        if row is None:
            return
        left = [each for each in row.source_ids if self.is_committed(each)]
        runs = self.wanted_runs(left)
        before = offsets_found(self.overlay, runs)
        split = split or row.kind is CompactionKind.STREAM_OBJECTS
        count = len(runs) if split else min(len(runs), 1)
        first = ObjectId(counters.next_value(self.overlay, counters.OBJECT))
        if count:
            self.propose(prepared(first, count, COMPACTOR, 1, 1 << 50))
        outputs = (
            [so(ObjectId(first + i), *run) for i, run in enumerate(runs)]
            if split
            else [sso(first, *runs, node_id=row.node_id)] * count
        )
        ends = [(each.stream_id, each.end_offset) for each in self.overlay[STREAMS]]
        self.propose(
            *([destroyed(*left, at_ms=self.overlay.cluster_time_ms + 1)] if left else []),
            *outputs,
            compaction_ended(row.task_id),
        )
        assert ends == [(each.stream_id, each.end_offset) for each in self.overlay[STREAMS]]
        assert offsets_found(self.overlay, runs) == before

    def wanted_runs(self, sources: list[ObjectId]) -> list[tuple[StreamId, int, int]]:
        """Return the contiguous runs of the sources in existing streams, above their starts."""
        pieces: list[tuple[StreamId, int, int]] = []
        for object_id in sources:
            single, several = (
                self.overlay[STREAM_OBJECTS].get(object_id),
                self.overlay[STREAM_SET_OBJECTS].get(object_id),
            )
            held = [single] if single is not None else list(several.ranges.decoded) if several else []
            pieces.extend((each.stream_id, each.start_offset, each.end_offset) for each in held)
        runs: list[tuple[StreamId, int, int]] = []
        for stream_id, start, end in sorted(pieces):
            stream_row = self.overlay[STREAMS].get(stream_id)
            if stream_row is None or end <= stream_row.start_offset:
                continue
            if runs and runs[-1][0] == stream_id and runs[-1][2] == start:
                runs[-1] = (stream_id, runs[-1][1], end)
            else:
                runs.append((stream_id, start, end))
        return runs

    @rule(life_ms=st.integers(1, 100))
    def lease_snapshot(self, life_ms: int) -> None:
        lease_id = counters.next_value(self.overlay, counters.SNAPSHOT)
        now_ms = self.overlay.cluster_time_ms
        self.propose(snapshot_leased(lease_id, self.overlay.index, now_ms, now_ms + life_ms))

    @rule(pick=picks, renewed=st.booleans())
    def renew_or_release_snapshot(self, pick: int, renewed: bool) -> None:
        row = self.pick(list(self.overlay[SNAPSHOTS]), pick)
        if row is not None and renewed:
            self.propose(snapshot_renewed(row.lease_id, row.leased_until_ms + 1))
        elif row is not None:
            self.propose(snapshot_released(row.lease_id))
