"""Random valid histories: every invariant after every transition, commits, drops, snapshots and replays.

The machine plays the leader: it proposes batches to the overlay, commits some prefix of them, or loses its
office
    and drops them.
"""

from __future__ import annotations

import itertools
from hashlib import blake2b
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.image import snapshot
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.overlay import Overlay
from ponor_metadata.image.read_index import find_pieces
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.cluster import INCARNATION_MAX, cluster_of, next_incarnation
from ponor_metadata.nouns.compactions import COMPACTIONS, COMPACTIONS_OF_SOURCE, CompactionKind, CompactionRow
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import (
    ALL_BROKERS,
    BROKER_CONFIGS,
    OPERATIONS,
    OPERATIONS_OF,
    NodeRole,
    WalKind,
    is_current,
    next_node_epoch,
)
from ponor_metadata.nouns.nodes import NODES as NODES_TABLE
from ponor_metadata.nouns.objects import (
    OBJECTS,
    OBJECTS_WAITING,
    STREAM_SET_OBJECTS,
    STREAM_SET_OBJECTS_AT,
    ObjectState,
    is_pinned,
)
from ponor_metadata.nouns.quorum import QUORUM
from ponor_metadata.nouns.snapshot_leases import SNAPSHOTS, pinned_since_ms
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAM_OBJECTS_OF, STREAMS, StreamRow
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, TOPICS, next_leader_epoch
from ponor_metadata.nouns.wals import WALS, WalRow
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId, ObjectId, StreamId

from libs.metadata.tests.metadata_kit import (
    COMPACTOR,
    GC_NODE,
    NODE_A,
    NODE_B,
    broker_configs_set,
    claimed,
    closed,
    compaction_ended,
    compaction_leased,
    compaction_renewed,
    completed,
    contents,
    created,
    dead_objects,
    destroyed,
    drain_set,
    fenced,
    formatted,
    move_begun,
    move_cancelled,
    opened,
    partition_changed,
    prepared,
    record,
    registered,
    removed,
    snapshot_leased,
    snapshot_released,
    snapshot_renewed,
    so,
    sso,
    tenant,
    topic_configs_set,
    topic_created,
    trimmed,
    wal_assigned,
    wal_closed,
    wal_opened,
    wal_trimmed,
)

NODES = (NODE_A, NODE_B)
picks = st.integers(0, 1_000_000)


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


class MetadataMachine(RuleBasedStateMachine):
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
        self.commit_all()

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

    # Compactions and snapshots

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

    # Keys, topics, results

    @rule(key=st.sampled_from("abc"), value=st.binary(max_size=4))
    def put_key(self, key: str, value: bytes) -> None:
        self.propose(record(key_put=pb.KeyPut(key=key, value=value)))

    @rule(pick=picks)
    def delete_key(self, pick: int) -> None:
        row = self.pick(list(self.overlay[KEYS]), pick)
        if row is not None:
            self.propose(record(key_deleted=pb.KeyDeleted(key=row.key)))

    @rule(partitions=st.integers(1, 4))
    def create_topic(self, partitions: int) -> None:
        self.topics += 1
        topic_id = self.topics.to_bytes(16, "big")
        epoch = next_leader_epoch(self.overlay, None)
        changes = [
            partition_changed(topic_id, number, NODES[number % 2], epoch) for number in range(partitions)
        ]
        self.propose(topic_created(topic_id, f"topic-{self.topics}"), *changes)

    @rule(pick=picks, target_id=st.sampled_from(NODES))
    def begin_move(self, pick: int, target_id: NodeId) -> None:
        still = [
            row
            for row in self.overlay[PARTITIONS]
            if row.leader_id != target_id and (row.topic_id, row.partition) not in self.overlay[MOVES]
        ]
        row, target = self.pick(still, pick), self.overlay[NODES_TABLE].get(target_id)
        assert target is not None
        assert target.role is NodeRole.BROKER
        if row is not None and not target.fenced:
            self.propose(move_begun(row.topic_id, row.partition, row.leader_id, target_id))

    @rule(pick=picks, elected=st.booleans())
    def end_move(self, pick: int, elected: bool) -> None:
        move = self.pick(list(self.overlay[MOVES]), pick)
        if move is None:
            return
        partition = self.overlay[PARTITIONS].get((move.topic_id, move.partition))
        assert partition is not None
        if elected:
            epoch = next_leader_epoch(self.overlay, partition)
            self.propose(partition_changed(move.topic_id, move.partition, move.target_id, epoch))
        else:
            self.propose(move_cancelled(move.topic_id, move.partition))

    @rule(pick=picks, retention=st.sampled_from((None, "1", "2")))
    def set_topic_configs(self, pick: int, retention: str | None) -> None:
        row = self.pick(list(self.overlay[TOPICS]), pick)
        if row is not None:
            configs = {} if retention is None else {"retention": retention}
            self.propose(topic_configs_set(row.topic_id, **configs))

    @rule(node_id=st.sampled_from((ALL_BROKERS, *NODES)), value=st.sampled_from((None, "1", "2")))
    def set_broker_configs(self, node_id: NodeId, value: str | None) -> None:
        if node_id != ALL_BROKERS and node_id not in self.overlay[NODES_TABLE]:
            return
        if value is not None:
            self.propose(broker_configs_set(node_id, setting=value))
        elif node_id in self.overlay[BROKER_CONFIGS]:
            self.propose(broker_configs_set(node_id))

    @rule(pick=picks)
    def delete_topic(self, pick: int) -> None:
        row = self.pick(list(self.overlay[TOPICS]), pick)
        if row is not None:
            self.propose(record(topic_deleted=pb.TopicDeleted(topic_id=row.topic_id)))

    @rule(node_id=st.sampled_from(NODES), answered=st.integers(0, 3))
    def complete_operation(self, node_id: NodeId, answered: int) -> None:
        epoch = self.epoch_of(node_id)
        if not is_current(self.overlay, node_id, epoch):
            return
        kept = [row.request_id for row in self.overlay[OPERATIONS].find(OPERATIONS_OF, node_id)]
        node = self.overlay[NODES_TABLE].get(node_id)
        assert node is not None
        request_id = max([*kept, node.first_incomplete_id, self.next_request[node_id]]) + 1
        self.next_request[node_id] = request_id
        floor = kept[min(answered, len(kept) - 1)] if kept else request_id
        self.propose(completed(request_id, first_incomplete_id=floor, node_id=node_id, node_epoch=epoch))

    # Controllers

    @precondition(lambda self: self.overlay.index % 6 == 0)
    @rule(until_ms=st.integers(0, 1 << 50), paused=st.booleans())
    def stop_or_pause(self, until_ms: int, paused: bool) -> None:
        announced = pb.ClusterStopAnnounced(until_ms=until_ms)
        self.propose(
            record(cluster_stop_announced=announced), record(balancer_paused=pb.BalancerPaused(paused=paused))
        )

    @precondition(lambda self: self.overlay.index % 6 == 0)
    @rule(kinds=st.lists(st.booleans(), min_size=1, max_size=4), directory=st.integers(0, 2))
    def set_voters(self, kinds: list[bool], directory: int) -> None:
        members = [
            pb.QuorumMember(
                node_id=number, directory_id=bytes([directory]) * 16, peer_address="p", voter=voter
            )
            for number, voter in enumerate(kinds)
        ]
        if any(kinds):
            self.propose(record(voters_set=pb.VotersSet(members=members)))
            assert [row.voter for row in self.overlay[QUORUM]] == kinds

    @precondition(lambda self: self.overlay.index % 8 == 0)
    @rule()
    def recover_by_force(self) -> None:
        cluster = cluster_of(self.overlay)
        assert cluster is not None
        before = [counters.next_value(self.overlay, name) for name in counters.ID_COUNTERS]
        incarnation = next_incarnation(cluster.incarnation, controller=1, drawn=0)
        if incarnation > INCARNATION_MAX:
            return
        raised = pb.IncarnationRaised(incarnation=incarnation)
        confirmed = pb.IncarnationConfirmed(incarnation=incarnation)
        self.propose(record(incarnation_raised=raised))
        self.propose(record(incarnation_confirmed=confirmed))
        after = [counters.next_value(self.overlay, name) for name in counters.ID_COUNTERS]
        assert all(
            late >= early + counters.INCARNATION_JUMP for early, late in zip(before, after, strict=True)
        )

    # The leader

    @rule()
    def commit_all(self) -> None:
        self.overlay.commit(self.overlay.index)
        assert (self.overlay.proposed_batches, self.overlay.touched_rows) == (0, 0)
        assert contents(self.overlay) == contents(self.image)

    @precondition(lambda self: self.overlay.proposed_batches > 1)
    @rule(pick=picks)
    def commit_some(self, pick: int) -> None:
        before = contents(self.overlay)
        index = self.image.index + 1 + pick % self.overlay.proposed_batches
        committed = self.overlay.commit(index)
        assert [each.encoded for each in committed] == self.log[index - len(committed) : index]
        assert self.image.index == index
        assert contents(self.overlay) == before

    @rule()
    def lose_office(self) -> None:
        before = contents(self.image)
        self.overlay.drop()
        del self.log[self.image.index :]
        assert self.overlay.touched_rows == 0
        assert contents(self.image) == before
        assert contents(self.overlay) == before
        assert (self.overlay.index, self.overlay.cluster_time_ms) == (
            self.image.index,
            self.image.cluster_time_ms,
        )
        self.topics = max([self.topics, *(int.from_bytes(row.topic_id, "big") for row in self.image[TOPICS])])

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot = (self.image.index, snapshot.encode(self.image))

    @rule()
    def begin_snapshot(self) -> None:
        self.encodings.append((snapshot.begin_snapshot(self.image), snapshot.encode(self.image), []))

    @rule(count=st.integers(1, 6))
    def go_on_with_snapshots(self, count: int) -> None:
        for encoding, expected, chunks in self.encodings:
            chunks.extend(itertools.islice(encoding, count))
            assert expected.startswith(b"".join(chunks))

    @invariant()
    def everything_holds(self) -> None:
        validate(self.image)
        validate(self.overlay)

    @invariant()
    def every_committed_offset_is_found(self) -> None:
        for row in self.overlay[STREAMS]:
            offset = row.start_offset
            for piece in find_pieces(
                self.overlay, row.stream_id, row.start_offset, row.end_offset, limit=1_000
            ):
                assert piece.start_offset == offset
                offset = piece.end_offset
            assert offset == row.end_offset

    def teardown(self) -> None:
        self.overlay.commit(self.overlay.index)
        for encoding, expected, chunks in self.encodings:
            assert b"".join((*chunks, *encoding)) == expected
            reader = snapshot.SnapshotReader(expected)
            while reader.read_section():
                pass
            validate(reader.image)
            assert blake2b(expected, digest_size=16).digest() == encoding.state_digest
            assert reader.image.index == encoding.index
        for compiled in (True, False):
            replayed = MetadataImage(compiled=compiled)
            for encoded in self.log:
                replayed.replay(encoded)
            assert snapshot.encode(replayed) == snapshot.encode(self.image)
            assert replayed.digest == self.image.digest
        if self.snapshot is not None:
            index, data = self.snapshot
            restored = snapshot.decode(data)
            assert restored.index == index
            for encoded in self.log[index:]:
                restored.apply_committed(encoded)
            assert snapshot.encode(restored) == snapshot.encode(self.image)
            assert restored.digest == self.image.digest


TestMetadataMachine = MetadataMachine.TestCase
TestMetadataMachine.settings = settings(
    max_examples=50, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
