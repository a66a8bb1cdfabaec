"""Validation of a whole view: every invariant that spans rows, checked from nothing but the rows.

What lives here: what must hold after every batch. Tests and simulation call it after each transition; production does not (it reads
everything). It shares no code with `apply`, so that a mistake there is not repeated here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

from ponor_runtime.identity import NodeId, ObjectId, StreamId, cluster_of_id

from ponor_metadata import counters
from ponor_metadata.rows import (
    ALL_BROKERS,
    NO_EPOCH,
    NO_NODE,
    NO_STREAM,
    CompactionKind,
    CompactionRow,
    NodeRole,
    ObjectState,
    StreamRow,
    WalKind,
)
from ponor_metadata.tables import (
    COMPACTIONS_OF_SOURCE,
    COMPACTIONS_OF_WORKER,
    MOVES_FROM,
    MOVES_TO,
    OBJECTS_WAITING,
    OPERATIONS_OF,
    PARTITIONS_OF,
    STREAM_OBJECTS_OF,
    STREAM_SET_OBJECTS_AT,
    STREAM_SET_OBJECTS_WITH,
    STREAMS_OF_PARTITION,
    STREAMS_OF_TOPIC,
    STREAMS_OPEN_AT,
    WALS_OF,
    WALS_RECOVERED_BY,
    Index,
    Table,
)
from ponor_metadata.view import View, cluster_of

K = TypeVar("K")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 -- the key of an index


def validate(view: View) -> None:
    """Check everything.

    Raises:
        AssertionError: an invariant is broken; the message names the row and the rule.
    """
    if view.index == 0:
        return
    if not view.clusters:
        # Batches without records open terms of leadership, and may come before the one that formats the cluster.
        assert not any((view.tenants, view.nodes, view.streams, view.objects)), "rows, but no cluster"
        return
    assert len(view.clusters) == 1, "there is exactly one cluster row"
    _validate_indexes(view)
    _validate_nodes(view)
    _validate_streams(view)
    _validate_references(view)
    _validate_coverage(view)
    _validate_reclaims(view)
    _validate_counters(view)
    _validate_topics(view)
    _validate_quorum(view)
    _validate_moves(view)
    _validate_wals(view)
    _validate_compactions(view)
    _validate_snapshots(view)


def _validate_quorum(view: View) -> None:
    members = list(view.quorum)
    assert not members or any(member.voter for member in members), "a quorum without a voter"
    voters = [member.node_id for member in members if member.voter]
    assert len(set(voters)) == len(voters), "a node votes under two directories"


def _validate_moves(view: View) -> None:
    for partition in view.partitions:
        move = view.moves.get((partition.topic_id, partition.partition))
        if move is None:
            continue
        name = f"move of {partition.topic_id.hex()}/{partition.partition}"
        assert move.source_id == partition.leader_id, (
            f"{name}: led by {partition.leader_id}, not by its source"
        )
        assert move.target_id != move.source_id, f"{name}: goes where it is"
        assert move.target_id in view.nodes, f"{name}: to an unknown broker"
        assert partition.replicas == (move.target_id,), f"{name}: replicas do not say where it goes"
    for move in view.moves:
        assert (move.topic_id, move.partition) in view.partitions, "a move without a partition"


def _validate_wals(view: View) -> None:
    for wal in view.wals:
        name = f"log {wal.node_id}/{wal.wal_epoch}"
        owner = view.nodes.get(wal.node_id)
        assert owner is not None, f"{name}: its node is unknown"
        assert 0 < wal.wal_epoch <= owner.node_epoch, f"{name}: of an epoch that never was"
        assert wal.trim_sequence >= 0, f"{name}: trimmed below its beginning"
        assigned = wal.recoverer_id != NO_NODE
        assert assigned == (wal.token > 0) == (wal.recoverer_epoch != NO_EPOCH), f"{name}: half an assignment"
        lives = owner.node_epoch == wal.wal_epoch and not owner.fenced
        assert not (lives and assigned), f"{name}: recovered beside its owner"
        assert not lives or owner.wal is WalKind.OBJECT, f"{name}: of a node whose log is a file"
        recoverer = view.nodes.get(wal.recoverer_id)
        assert not assigned or recoverer is not None, f"{name}: recovered by an unknown node"
        assert recoverer is None or recoverer.node_epoch >= wal.recoverer_epoch, (
            f"{name}: by an epoch that never was"
        )


def _validate_compactions(view: View) -> None:
    following = counters.next_value(view, counters.COMPACTION)
    sources: dict[ObjectId, int] = {}
    for task in view.compactions:
        name = f"compaction {task.task_id}"
        assert 0 < task.task_id < following, f"{name}: its id was never handed out"
        assert task.token > 0, f"{name}: nobody has it"
        worker = view.nodes.get(task.worker_id)
        assert worker is not None, f"{name}: its worker is unknown"
        is_late = worker.node_epoch > task.worker_epoch or worker.role is NodeRole.NONE
        assert is_late or worker.role is NodeRole.COMPACTOR, f"{name}: its worker is no compactor"
        assert worker.node_epoch >= task.worker_epoch, f"{name}: of an epoch that never was"
        of_stream = task.kind is CompactionKind.STREAM_OBJECTS
        assert (task.node_id == NO_NODE) == of_stream == (task.stream_id != NO_STREAM), (
            f"{name}: {task.kind.name} of node {task.node_id}, stream {task.stream_id}"
        )
        for object_id in task.source_ids:
            other = sources.setdefault(object_id, task.task_id)
            assert other == task.task_id, f"{name}: object {object_id} is a source of {other} too"
            _validate_source(view, task, object_id)


def _validate_source(view: View, task: CompactionRow, object_id: ObjectId) -> None:
    row = view.objects.get(object_id)
    if row is None or row.state is ObjectState.DESTROYED:
        return  # all of it was trimmed or deleted meanwhile
    name = f"compaction {task.task_id}: source {object_id}"
    assert row.state is ObjectState.COMMITTED, f"{name} is {row.state.name}"
    single, several = view.stream_objects.get(object_id), view.stream_set_objects.get(object_id)
    assert single is None or single.stream_id == task.stream_id, f"{name}: of stream {single}"
    assert several is None or several.node_id == task.node_id, f"{name}: of another node"


def _validate_snapshots(view: View) -> None:
    following = counters.next_value(view, counters.SNAPSHOT)
    since_ms = min((lease.begun_at_ms for lease in view.snapshots), default=None)
    for lease in view.snapshots:
        name = f"snapshot {lease.lease_id}"
        assert 0 < lease.lease_id < following, f"{name}: its id was never handed out"
        assert lease.image_index < view.index, f"{name}: of the future"
        assert lease.begun_at_ms <= min(view.cluster_time_ms, lease.leased_until_ms), f"{name}: begins late"
    if since_ms is None:
        return
    for row in view.objects:
        claimed = row.claim_node_id != NO_NODE
        assert not claimed or not row.size_bytes or row.destroyed_at_ms <= since_ms, (
            f"object {row.object_id}: claimed, but destroyed under a snapshot's lease"
        )


def _validate_nodes(view: View) -> None:
    for node in view.nodes:
        assert 0 <= node.node_id < 1 << 30, f"node {node.node_id}: not below 2^30"
        assert not node.draining or (node.role is NodeRole.BROKER and not node.fenced), (
            f"node {node.node_id}: drains, but is fenced or no broker"
        )
        assert node.role is not NodeRole.NONE or node.fenced, (
            f"node {node.node_id}: unregistered, but has rights"
        )
    for operation in view.operations:
        owner = view.nodes.get(operation.node_id)
        assert owner is not None, f"operation {operation.request_id}: node {operation.node_id} is unknown"
        assert operation.request_id >= owner.first_incomplete_id, (
            f"operation {operation.request_id}: kept too long"
        )
        assert operation.commit_index <= view.index, f"operation {operation.request_id}: from the future"


def _validate_streams(view: View) -> None:
    for stream in view.streams:
        name = f"stream {stream.stream_id}"
        assert 0 <= stream.start_offset <= stream.end_offset, f"{name}: start above end"
        if stream.open:
            owner = view.nodes.get(stream.node_id)
            assert owner is not None, f"{name}: open at an unknown node"
            assert stream.node_epoch <= owner.node_epoch, f"{name}: open at an epoch that never was"
            assert stream.ranges[-1].node_id == stream.node_id, f"{name}: the last range is another node's"
            assert stream.ranges[-1].stream_epoch == stream.stream_epoch, f"{name}: the last range is older"
        if not stream.ranges:
            assert stream.stream_epoch == -1, f"{name}: opened, but without a range"
            assert stream.end_offset == 0, f"{name}: data without a range"
            assert stream.node_id == NO_NODE, f"{name}: owned, but without a range"
        _validate_ranges(stream)


def _validate_ranges(stream: StreamRow) -> None:
    name = f"stream {stream.stream_id}"
    for earlier, later in zip(stream.ranges, stream.ranges[1:], strict=False):
        assert earlier.end_offset == later.start_offset, (
            f"{name}: ranges are not contiguous at {later.start_offset}"
        )
        assert earlier.start_offset < earlier.end_offset, f"{name}: an empty range that is not the last"
        assert earlier.stream_epoch < later.stream_epoch, f"{name}: epochs of ranges do not rise"
        assert earlier.end_offset > stream.start_offset, f"{name}: a range wholly below the start"
    if stream.ranges:
        assert stream.ranges[0].start_offset <= stream.start_offset, (
            f"{name}: the ranges begin above the start"
        )
        assert stream.ranges[-1].end_offset == stream.end_offset, f"{name}: the ranges do not end at the end"


def _validate_references(view: View) -> None:
    referenced: dict[ObjectId, str] = {}
    for stream_object in view.stream_objects:
        referenced[stream_object.object_id] = f"stream {stream_object.stream_id}"
    for set_object in view.stream_set_objects:
        assert set_object.object_id not in referenced, f"object {set_object.object_id}: is of both kinds"
        assert set_object.node_id in view.nodes, f"object {set_object.object_id}: its node is unknown"
        referenced[set_object.object_id] = f"node {set_object.node_id}"
    for row in view.objects:
        committed = row.state is ObjectState.COMMITTED
        assert committed == (row.object_id in referenced), (
            f"object {row.object_id} is {row.state.name}, referenced by {referenced.get(row.object_id)}"
        )
        assert not committed or row.size_bytes > 0, f"object {row.object_id}: committed without a size"
        assert row.namespace, f"object {row.object_id}: without an origin namespace"
        assert row.bucket_index >= 0, f"object {row.object_id}: without a bucket"
        claimed = row.claim_node_id != NO_NODE
        assert not claimed or row.state is ObjectState.DESTROYED, (
            f"object {row.object_id}: claimed while in use"
        )
    for object_id, holder in referenced.items():
        assert object_id in view.objects, f"{holder}: its object {object_id} has no row"


def _validate_coverage(view: View) -> None:
    """Objects hold every offset of [start, end) exactly once; what lies wholly below the start may linger in stream set objects."""
    pieces: dict[StreamId, list[tuple[int, int, NodeId | None]]] = defaultdict(list)
    for stream_object in view.stream_objects:
        assert stream_object.stream_id in view.streams or stream_object.stream_id in view.reclaims, (
            f"object {stream_object.object_id}: its stream is gone and nothing reclaims it"
        )
        piece = (stream_object.start_offset, stream_object.end_offset, None)
        pieces[stream_object.stream_id].append(piece)
    for set_object in view.stream_set_objects:
        for each in set_object.ranges.decoded:
            pieces[each.stream_id].append((each.start_offset, each.end_offset, set_object.node_id))
    for stream in view.streams:
        covered = None
        for start, end, node_id in sorted(pieces.pop(stream.stream_id, []), key=lambda piece: piece[:2]):
            name = f"stream {stream.stream_id} at {start}"
            assert covered is None or start >= covered, f"{name}: held twice"
            if end > stream.start_offset:
                expected = max(stream.start_offset, covered or 0)
                assert start <= expected, f"{name}: nothing holds {expected}"
                writer = stream.range_at(end - 1)
                assert writer is not None, f"{name}: data that no range knows"
                assert node_id is None or node_id == writer.node_id, f"{name}: held by the wrong node"
            covered = end
        if stream.start_offset < stream.end_offset:
            assert covered == stream.end_offset, f"stream {stream.stream_id}: nothing holds {covered}"


def _validate_reclaims(view: View) -> None:
    """An object that holds nothing live waits in at least one of its streams to be destroyed, and what a deleted topic left waits in the topic's row."""
    held: dict[ObjectId, list[tuple[StreamId, int]]] = {
        row.object_id: [(row.stream_id, row.end_offset)] for row in view.stream_objects
    }
    for several in view.stream_set_objects:
        held[several.object_id] = [(each.stream_id, each.end_offset) for each in several.ranges.decoded]
    for object_id, pieces in held.items():
        live = any(
            (stream := view.streams.get(stream_id)) is not None and end > stream.start_offset
            for stream_id, end in pieces
        )
        assert live or any(stream_id in view.reclaims for stream_id, _ in pieces), (
            f"object {object_id} holds nothing live, and no stream of it is to be reclaimed"
        )
    for deletion in view.deletions:
        assert deletion.topic_id not in view.topics, f"topic {deletion.topic_id.hex()} exists and is deleted"


def _validate_counters(view: View) -> None:
    cluster = cluster_of(view)
    assert cluster is not None
    _assert_below(view, counters.STREAM, (row.stream_id for row in view.streams))
    _assert_below(view, counters.OBJECT, (row.object_id for row in view.objects))
    orders = [row.commit_order for row in view.stream_set_objects]
    assert len(set(orders)) == len(orders), "two stream set objects of one commit order"
    assert not orders or max(orders) < counters.next_value(view, counters.COMMIT_ORDER)
    for name in counters.ID_COUNTERS:
        assert cluster_of_id(counters.next_value(view, name)) == cluster.cluster_ordinal, f"counter {name}"


def _assert_below(view: View, name: str, ids: Iterable[int]) -> None:
    following = counters.next_value(view, name)
    for each in ids:
        foreign = cluster_of_id(each) != cluster_of_id(following)
        assert foreign or each < following, f"{name} {each} is not below the next id {following}"


def _validate_topics(view: View) -> None:
    names: dict[tuple[str, str], bytes] = {}
    for topic in view.topics:
        assert topic.tenant_id in view.tenants, f"topic {topic.name!r}: its tenant is unknown"
        twin = names.setdefault((topic.tenant_id, topic.name), topic.topic_id)
        assert twin == topic.topic_id, f"topic {topic.name!r}: two of one tenant"
    numbers: dict[bytes, int] = defaultdict(int)
    for partition in view.partitions:
        assert partition.topic_id in view.topics, "a partition without a topic"
        assert partition.partition == numbers[partition.topic_id], (
            f"partition {partition.partition}: a gap below"
        )
        numbers[partition.topic_id] += 1
    for row in view.broker_configs:
        assert row.node_id == ALL_BROKERS or row.node_id in view.nodes, (
            f"settings of an unknown broker {row.node_id}"
        )
        assert row.configs, f"broker {row.node_id}: a row without a setting"
    seen = [tenant.cluster_id for tenant in view.tenants]
    assert len(set(seen)) == len(seen), "two tenants show one cluster.id"


def _validate_indexes(view: View) -> None:
    _assert_index(view.streams, STREAMS_OPEN_AT)
    _assert_index(view.streams, STREAMS_OF_TOPIC)
    _assert_index(view.streams, STREAMS_OF_PARTITION)
    _assert_index(view.objects, OBJECTS_WAITING)
    _assert_index(view.stream_objects, STREAM_OBJECTS_OF)
    _assert_index(view.stream_set_objects, STREAM_SET_OBJECTS_AT)
    _assert_index(view.stream_set_objects, STREAM_SET_OBJECTS_WITH)
    _assert_index(view.partitions, PARTITIONS_OF)
    _assert_index(view.operations, OPERATIONS_OF)
    _assert_index(view.moves, MOVES_FROM)
    _assert_index(view.moves, MOVES_TO)
    _assert_index(view.wals, WALS_OF)
    _assert_index(view.wals, WALS_RECOVERED_BY)
    _assert_index(view.compactions, COMPACTIONS_OF_SOURCE)
    _assert_index(view.compactions, COMPACTIONS_OF_WORKER)
    assert len(list(view.objects)) == len(view.objects), "objects: length"
    assert len(list(view.streams)) == len(view.streams), "streams: length"


def _assert_index(table: Table[K, R], index: Index[I, R]) -> None:
    expected: dict[I, list[R]] = defaultdict(list)
    for row in table:
        for index_key in index.keys(row):
            expected[index_key].append(row)
    for index_key, rows in expected.items():
        found = list(table.find(index, index_key))
        assert found == sorted(rows, key=index.order), f"index {index.name} is wrong under {index_key!r}"
