"""Rules of the metadata's state machine test: nodes, write-ahead logs, streams and objects."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.image import snapshot
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.overlay import Overlay
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.nodes import NODES as NODES_TABLE
from ponor_metadata.nouns.nodes import (
    WalKind,
    is_current,
    next_node_epoch,
)
from ponor_metadata.nouns.objects import (
    OBJECTS,
    OBJECTS_WAITING,
    ObjectState,
    is_pinned,
)
from ponor_metadata.nouns.snapshot_leases import pinned_since_ms
from ponor_metadata.nouns.streams import STREAMS, StreamRow
from ponor_metadata.nouns.topics import PARTITIONS, next_leader_epoch
from ponor_metadata.nouns.wals import WALS, WalRow
from ponor_runtime.identity import NodeId, ObjectId, StreamId

from libs.metadata.tests.metadata_kit import (
    COMPACTOR,
    GC_NODE,
    NODE_A,
    NODE_B,
    claimed,
    closed,
    created,
    dead_objects,
    destroyed,
    drain_set,
    fenced,
    formatted,
    opened,
    partition_changed,
    prepared,
    record,
    registered,
    removed,
    so,
    sso,
    tenant,
    trimmed,
    wal_assigned,
    wal_closed,
    wal_opened,
    wal_trimmed,
)

NODES = (NODE_A, NODE_B)
picks = st.integers(0, 1_000_000)


class StorageRules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.image = MetadataImage()
        self.overlay = Overlay(self.image)
        self.log: list[bytes] = []
        self.snapshot: tuple[int, bytes] | None = None
        # Snapshots in progress, and their expected bytes.
        self.encodings: list[tuple[snapshot.SnapshotEncoding, bytes, list[bytes]]] = []
        self.unproposed: dict[str, list[Any]] = {}
        self.next_request = dict.fromkeys((*NODES, GC_NODE), 1)
        self.topics = 0
        self.propose(formatted(), tenant())
        for node_id in (*NODES, GC_NODE):
            self.propose(registered(node_id))
        self.propose(registered(COMPACTOR, role=2))
        self.create_streams(4)
        for number in range(4):
            self.open_stream(NODES[number % 2], number, 1)
        self.overlay.commit(self.overlay.index)

    def propose(self, *records: pb.Record, passes_ms: int = 1) -> None:
        batch = pb.RecordBatch(
            index=self.overlay.index + 1,
            term=1,
            cluster_time_ms=self.overlay.cluster_time_ms + passes_ms,
            records=records,
        )
        self.log.append(self.overlay.propose(batch))

    def pick(self, candidates: list[Any], pick: int) -> Any:
        return candidates[pick % len(candidates)] if candidates else None

    def epoch_of(self, node_id: NodeId) -> int:
        node = self.overlay[NODES_TABLE].get(node_id)
        assert node is not None
        return node.node_epoch

    def open_streams_of(self, node_id: NodeId) -> list[StreamRow]:
        epoch = self.epoch_of(node_id)
        return [
            row
            for row in self.overlay[STREAMS]
            if row.open and row.node_id == node_id and row.node_epoch == epoch
        ]

    # Nodes

    @precondition(
        lambda self: any(row.fenced for row in self.overlay[NODES_TABLE]) or self.overlay.index % 8 == 0
    )
    @rule(node_id=st.sampled_from(NODES), wal=st.sampled_from(WalKind))
    def register_again(self, node_id: NodeId, wal: WalKind) -> None:
        epoch = next_node_epoch(self.overlay, self.overlay[NODES_TABLE].get(node_id))
        raised = [
            partition_changed(row.topic_id, row.partition, node_id, next_leader_epoch(self.overlay, row))
            for row in self.overlay[PARTITIONS]
            if row.leader_id == node_id
        ]
        self.propose(registered(node_id, epoch, wal=wal), *raised)
        self.next_request[node_id] = 1

    @precondition(lambda self: self.overlay.index % 8 == 0)
    @rule(node_id=st.sampled_from(NODES))
    def fence(self, node_id: NodeId) -> None:
        self.propose(fenced(node_id, self.epoch_of(node_id)))

    @rule(node_id=st.sampled_from(NODES), draining=st.booleans())
    def drain(self, node_id: NodeId, draining: bool) -> None:
        epoch = self.epoch_of(node_id)
        if is_current(self.overlay, node_id, epoch):
            self.propose(drain_set(node_id, epoch, draining=draining))

    # Write-ahead logs in the store

    @rule(node_id=st.sampled_from(NODES))
    def open_wal(self, node_id: NodeId) -> None:
        node = self.overlay[NODES_TABLE].get(node_id)
        assert node is not None
        absent = (node_id, node.node_epoch) not in self.overlay[WALS]
        if absent and not node.fenced and node.wal is WalKind.OBJECT:
            self.propose(wal_opened(node_id, node.node_epoch))

    @rule(pick=picks, step=st.integers(1, 1 << 40))
    def trim_wal(self, pick: int, step: int) -> None:
        row = self.pick(list(self.overlay[WALS]), pick)
        if row is not None:
            self.propose(wal_trimmed(row.trim_sequence + step, row.node_id, row.wal_epoch))

    @rule(pick=picks, recoverer_id=st.sampled_from(NODES))
    def assign_recovery(self, pick: int, recoverer_id: NodeId) -> None:
        over = [row for row in self.overlay[WALS] if not is_current(self.overlay, row.node_id, row.wal_epoch)]
        row, epoch = self.pick(over, pick), self.epoch_of(recoverer_id)
        if row is not None and is_current(self.overlay, recoverer_id, epoch):
            assigned = wal_assigned(
                recoverer_id,
                row.token + 1,
                recoverer_epoch=epoch,
                node_id=row.node_id,
                wal_epoch=row.wal_epoch,
            )
            self.propose(assigned)

    @rule(pick=picks)
    def close_wal(self, pick: int) -> None:
        row: WalRow | None = self.pick(list(self.overlay[WALS]), pick)
        if row is None:
            return
        left = [
            each
            for each in self.overlay[STREAMS]
            if each.open and (each.node_id, each.node_epoch) == (row.node_id, row.wal_epoch)
        ]
        closes = [closed(each.stream_id, each.stream_epoch) for each in left]
        self.propose(*closes, wal_closed(row.trim_sequence, row.node_id, row.wal_epoch))

    # Streams

    @rule(count=st.integers(1, 3))
    def create_streams(self, count: int) -> None:
        first = counters.next_value(self.overlay, counters.STREAM)
        self.propose(*(created(StreamId(first + i), partition=str(i)) for i in range(count)))

    @rule(node_id=st.sampled_from(NODES), pick=picks, raise_by=st.integers(1, 3))
    def open_stream(self, node_id: NodeId, pick: int, raise_by: int) -> None:
        row = self.pick([row for row in self.overlay[STREAMS] if not row.open], pick)
        epoch = self.epoch_of(node_id)
        if row is not None and is_current(self.overlay, node_id, epoch):
            self.propose(opened(row.stream_id, row.stream_epoch + raise_by, node_id, epoch))

    @rule(pick=picks)
    def close_stream(self, pick: int) -> None:
        row = self.pick([row for row in self.overlay[STREAMS] if row.open], pick)
        if row is not None:
            self.propose(closed(row.stream_id, row.stream_epoch))

    @rule(pick=picks, part=st.integers(1, 10))
    def trim_stream(self, pick: int, part: int) -> None:
        row = self.pick([row for row in self.overlay[STREAMS] if row.start_offset < row.end_offset], pick)
        if row is None:
            return
        start = row.start_offset + max(1, (row.end_offset - row.start_offset) * part // 10)
        dead = dead_objects(self.overlay, {row.stream_id: start})
        self.propose(
            trimmed(row.stream_id, start),
            *([destroyed(*dead, at_ms=self.overlay.cluster_time_ms + 1)] if dead else []),
        )

    @rule(pick=picks)
    def delete_stream(self, pick: int) -> None:
        row = self.pick(list(self.overlay[STREAMS]), pick)
        if row is not None:
            dead = dead_objects(self.overlay, {row.stream_id: None})
            deleted = record(stream_deleted=pb.StreamDeleted(stream_id=row.stream_id))
            self.propose(
                deleted, *([destroyed(*dead, at_ms=self.overlay.cluster_time_ms + 1)] if dead else [])
            )

    # Objects

    @rule(node_id=st.sampled_from(NODES), count=st.integers(1, 4), ttl_ms=st.integers(1, 50))
    def prepare(self, node_id: NodeId, count: int, ttl_ms: int) -> None:
        epoch = self.epoch_of(node_id)
        if is_current(self.overlay, node_id, epoch):
            first = ObjectId(counters.next_value(self.overlay, counters.OBJECT))
            expires_at_ms = self.overlay.cluster_time_ms + ttl_ms
            self.propose(prepared(first, count, node_id, epoch, expires_at_ms))

    @rule(node_id=st.sampled_from(NODES), lengths=st.lists(st.integers(0, 30), min_size=1, max_size=6))
    def commit_upload(self, node_id: NodeId, lengths: list[int]) -> None:
        """Long runs become stream objects, the rest one stream set object, as the broker's upload does it."""
        ready = [
            row.object_id
            for row in self.overlay[OBJECTS].find(OBJECTS_WAITING, ObjectState.PREPARED)
            if row.node_id == node_id
        ]
        epoch = self.epoch_of(node_id)
        if len(ready) < len(lengths) + 1:
            if is_current(self.overlay, node_id, epoch):
                self.prepare(node_id, len(lengths) + 1 - len(ready), 50)
            return
        runs = [
            (row.stream_id, row.end_offset, row.end_offset + length)
            for row, length in zip(self.open_streams_of(node_id), lengths, strict=False)
            if length
        ]
        large = [run for run in runs if run[2] - run[1] > 15]
        small = [run for run in runs if run not in large]
        if not runs:
            return
        records = [so(ready.pop(), *run) for run in large]
        if small:
            records.append(sso(ready.pop(), *small, node_id=node_id))
        self.propose(*records)

    @rule(count=st.integers(1, 5), waits_ms=st.integers(1, 60))
    def claim(self, count: int, waits_ms: int) -> None:
        now_ms = self.overlay.cluster_time_ms + waits_ms
        expired = [
            row
            for row in self.overlay[OBJECTS].find(OBJECTS_WAITING, ObjectState.PREPARED)
            if row.expires_at_ms <= now_ms
        ]
        since_ms = pinned_since_ms(self.overlay)
        gone = [
            row
            for row in self.overlay[OBJECTS].find(OBJECTS_WAITING, ObjectState.DESTROYED)
            if not is_pinned(row, since_ms)
        ]
        free = [*expired, *gone][:count]
        if free:
            ids = [row.object_id for row in free]
            self.propose(claimed(*ids, until_ms=now_ms + 20), passes_ms=waits_ms)

    @rule(count=st.integers(1, 5))
    def remove(self, count: int) -> None:
        done = [
            row.object_id
            for row in self.overlay[OBJECTS].find(OBJECTS_WAITING, ObjectState.DESTROYED)
            if row.claim_node_id == GC_NODE
        ]
        if done:
            self.propose(removed(*done[:count]))
