"""Trace validation: checks that committed batches are steps that the protocols allow.

It reads records only: no image, no `apply`, no validator. Every operation ends with its `OperationCompleted`
in the same batch, so the calling process of a step is known, except for the first parts of a change that
spans several batches. Records contain neither the epoch that a commit request names nor the end
offset that a close request names. Only the exhaustive search (`tests/models`) checks the rules that need
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ponor.metadata.v1 import records_pb2 as records
from ponor_metadata.tables.ranges import PackedRanges

from ponor_cluster_simulation.protocols import objects, partitions, streams, wals
from ponor_cluster_simulation.protocols.compaction_steps import CompactionSteps, Swap, find_swaps
from ponor_cluster_simulation.protocols.objects import Object, Phase
from ponor_cluster_simulation.protocols.partitions import Partition
from ponor_cluster_simulation.protocols.streams import NotAllowedError, Stream
from ponor_cluster_simulation.protocols.wals import Wal

Caller = tuple[int, int]
"""Node id and node epoch."""


@dataclass(frozen=True, slots=True)
class ForbiddenStep:
    """A record that the protocol does not allow."""

    index: int
    kind: str
    what: str

    def __str__(self) -> str:
        return f"batch {self.index}, {self.kind}: {self.what}"


@dataclass(slots=True)
class _Step:
    """The context of one record."""

    index: int
    now: int
    caller: Caller | None
    swap: Swap | None


@dataclass(slots=True)
class CommittedSteps:
    """The protocols' state after the batches so far. A forbidden step is recorded and has no effect.

    Attributes:
        destroy_delay_ms: the controllers' setting; 0 disables the check of the delay.
        taken: allowed steps by kind of record, for coverage.
    """

    destroy_delay_ms: int = 0
    forbidden: list[ForbiddenStep] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)
    index: int = 0
    _term: int = 0
    _time: int = 0
    _nodes: dict[int, int] = field(default_factory=dict)
    _fenced: set[Caller] = field(default_factory=set)
    _streams: dict[int, Stream | None] = field(default_factory=dict)
    _objects: dict[int, Object] = field(default_factory=dict)
    _requests: set[tuple[int, int, int]] = field(default_factory=set)
    _partitions: dict[tuple[bytes, int], Partition] = field(default_factory=dict)
    _partition_streams: dict[tuple[bytes, int], list[int]] = field(default_factory=dict)
    _wals: dict[Caller, Wal] = field(default_factory=dict)
    _closed_wals: set[Caller] = field(default_factory=set)
    _compactions: CompactionSteps = field(default_factory=CompactionSteps)

    def take(self, batch: records.RecordBatch) -> list[ForbiddenStep]:
        """Check the next committed batch. Return its forbidden steps."""
        known = len(self.forbidden)
        self._frame(batch)
        callers = callers_of(batch.records)
        swaps = find_swaps(batch.records)
        for at, (record, caller) in enumerate(zip(batch.records, callers, strict=True)):
            kind = record.WhichOneof("kind")
            rule = _RULES.get(kind or "")
            if rule is None:
                continue
            step = _Step(batch.index, batch.cluster_time_ms, caller, swaps.get(at))
            try:
                rule(self, getattr(record, kind or ""), step)
                self.taken[kind or ""] += 1
            except NotAllowedError as forbidden:
                self.forbidden.append(ForbiddenStep(batch.index, kind or "", str(forbidden)))
        return self.forbidden[known:]

    def _frame(self, batch: records.RecordBatch) -> None:
        for name, ok in (
            (f"follows batch {self.index}", batch.index == self.index + 1),
            (f"has term {batch.term} after {self._term}", batch.term >= self._term),
            (
                f"has cluster time {batch.cluster_time_ms} after {self._time}",
                batch.cluster_time_ms >= self._time,
            ),
        ):
            if not ok:
                self.forbidden.append(ForbiddenStep(batch.index, "batch", name))
        self.index, self._term, self._time = batch.index, batch.term, batch.cluster_time_ms

    # --- nodes and requests ---

    def node_registered(self, record: records.NodeRegistered, _: _Step) -> None:
        newest = self._nodes.get(record.node_id, -1)
        if record.node_epoch <= newest:
            raise NotAllowedError(
                f"node {record.node_id} registers at epoch {record.node_epoch} after epoch {newest}"
            )
        self._nodes[record.node_id] = record.node_epoch

    def node_fenced(self, record: records.NodeFenced, _: _Step) -> None:
        self._require_current((record.node_id, record.node_epoch))
        self._fenced.add((record.node_id, record.node_epoch))

    def operation_completed(self, record: records.OperationCompleted, _: _Step) -> None:
        self._require_current((record.node_id, record.node_epoch))
        request = (record.node_id, record.node_epoch, record.request_id)
        if request in self._requests:
            raise NotAllowedError(f"request {record.request_id} of node {record.node_id} is executed twice")
        self._requests.add(request)

    def _require_current(self, caller: Caller) -> None:
        streams.require_newest(caller[0], caller[1], self._nodes.get(caller[0]))
        if caller in self._fenced:
            raise NotAllowedError(f"node {caller[0]} acts under epoch {caller[1]}, which is fenced")

    def _is_current(self, caller: Caller) -> bool:
        return self._nodes.get(caller[0]) == caller[1] and caller not in self._fenced

    # --- partitions ---

    def partition_changed(self, record: records.PartitionChanged, _: _Step) -> None:
        key = (record.topic_id, record.partition)
        partition = self._partitions.get(key, Partition())
        newest = self._nodes.get(partition.leader)
        lost_rights = newest is None or (partition.leader, newest) in self._fenced
        may_leave = lost_rights or not any(map(self._is_open, self._partition_streams.get(key, ())))
        self._partitions[key] = partitions.elected(
            partition, record.leader_id, record.leader_epoch, may_leave=may_leave
        )

    def partition_move_begun(self, record: records.PartitionMoveBegun, _: _Step) -> None:
        key = (record.topic_id, record.partition)
        known = self._partitions.get(key, Partition())
        self._partitions[key] = partitions.begun(known, record.source_id, record.target_id)

    def partition_move_cancelled(self, record: records.PartitionMoveCancelled, _: _Step) -> None:
        key = (record.topic_id, record.partition)
        self._partitions[key] = partitions.cancelled(self._partitions.get(key, Partition()))

    def _is_open(self, stream_id: int) -> bool:
        stream = self._streams.get(stream_id)
        return stream is not None and stream.open

    # --- write-ahead logs ---

    def wal_opened(self, record: records.WalOpened, step: _Step) -> None:
        name = (record.node_id, record.wal_epoch)
        self._require_current(name)
        if step.caller not in {None, name}:
            raise NotAllowedError(f"{step.caller} opens the log of {name}")
        self._wals[name] = wals.opened(self._wals.get(name), was_closed=name in self._closed_wals)

    def wal_trimmed(self, record: records.WalTrimmed, step: _Step) -> None:
        name = (record.node_id, record.wal_epoch)
        self._wals[name] = wals.trimmed(self._wal(name), record.trim_sequence, step.caller, name)

    def wal_recovery_assigned(self, record: records.WalRecoveryAssigned, _: _Step) -> None:
        name, recoverer = (record.node_id, record.wal_epoch), (record.recoverer_id, record.recoverer_epoch)
        self._require_current(recoverer)
        self._wals[name] = wals.assigned(
            self._wal(name), recoverer, record.token, owner_is_over=not self._is_current(name)
        )

    def wal_closed(self, record: records.WalClosed, step: _Step) -> None:
        name = (record.node_id, record.wal_epoch)
        left = (
            number
            for number, stream in self._streams.items()
            if stream is not None and stream.open and (stream.node, stream.node_epoch) == name
        )
        wals.closed(self._wal(name), record.end_sequence, step.caller, name, open_stream=next(left, None))
        del self._wals[name]
        self._closed_wals.add(name)

    def _wal(self, name: Caller) -> Wal:
        wal = self._wals.get(name)
        if wal is None:
            raise NotAllowedError(f"the log of {name} is not open")
        return wal

    def _actor(self, stream: Stream, step: _Step) -> int:
        """The node for which the caller acts on a stream: the owner of a log that it recovers, otherwise the
        caller's node.
        """
        if step.caller is None:
            return stream.node
        wal = self._wals.get((stream.node, stream.node_epoch))
        return stream.node if wal is not None and wal.recoverer == step.caller else step.caller[0]

    # --- streams ---

    def stream_created(self, record: records.StreamCreated, _: _Step) -> None:
        if record.stream_id in self._streams:
            raise NotAllowedError(f"stream {record.stream_id} is created twice")
        self._streams[record.stream_id] = Stream()
        if "topic" in record.tags and "partition" in record.tags:
            key = (bytes.fromhex(record.tags["topic"]), int(record.tags["partition"]))
            self._partition_streams.setdefault(key, []).append(record.stream_id)

    def stream_opened(self, record: records.StreamOpened, step: _Step) -> None:
        self._require_current((record.node_id, record.node_epoch))
        if step.caller not in {None, (record.node_id, record.node_epoch)}:
            raise NotAllowedError(f"{step.caller} opens stream {record.stream_id} for node {record.node_id}")
        stream = self._stream(record.stream_id)
        self._streams[record.stream_id] = streams.opened(
            stream, record.stream_epoch, record.node_id, record.node_epoch
        )

    def stream_closed(self, record: records.StreamClosed, step: _Step) -> None:
        stream = self._stream(record.stream_id)
        node = self._actor(stream, step)
        self._streams[record.stream_id] = streams.closed(stream, node, record.stream_epoch)

    def stream_trimmed(self, record: records.StreamTrimmed, step: _Step) -> None:
        stream = self._stream(record.stream_id)
        if step.caller is not None and (not stream.open or step.caller[0] != stream.node):
            raise NotAllowedError(
                f"node {step.caller[0]} trims stream {record.stream_id}, but does not hold it open"
            )
        self._streams[record.stream_id] = streams.trimmed(stream, record.start_offset)

    def stream_deleted(self, record: records.StreamDeleted, _: _Step) -> None:
        self._stream(record.stream_id)
        self._streams[record.stream_id] = None

    def _stream(self, stream_id: int) -> Stream:
        stream = self._streams.get(stream_id)
        if stream is None:
            raise NotAllowedError(f"stream {stream_id} is deleted, or was never created")
        return stream

    # --- objects ---

    def objects_prepared(self, record: records.ObjectsPrepared, _: _Step) -> None:
        self._require_current((record.node_id, record.node_epoch))
        for object_id in range(record.first_object_id, record.first_object_id + record.count):
            known = self._objects.get(object_id)
            self._objects[object_id] = objects.prepared(
                known, record.node_id, record.node_epoch, record.expires_at_ms
            )

    def stream_object_committed(self, record: records.StreamObjectCommitted, step: _Step) -> None:
        each = self._committed(record.object_id, record.committed_at_ms, step)
        self._hold(record.object_id, [(record.stream_id, record.start_offset, record.end_offset)], step)
        self._objects[record.object_id] = each

    def stream_set_object_committed(self, record: records.StreamSetObjectCommitted, step: _Step) -> None:
        each = self._committed(record.object_id, record.committed_at_ms, step)
        if step.swap is not None:
            self._compactions.require_node(step.swap, record.node_id)
        else:
            self._require_node(record, step)
        pieces = PackedRanges(record.packed_ranges).decoded
        held = [(int(piece.stream_id), piece.start_offset, piece.end_offset) for piece in pieces]
        self._hold(record.object_id, held, step)
        self._objects[record.object_id] = each

    def _require_node(self, record: records.StreamSetObjectCommitted, step: _Step) -> None:
        recovers = any(
            name[0] == record.node_id and wal.recoverer == step.caller for name, wal in self._wals.items()
        )
        if step.caller is not None and step.caller[0] != record.node_id and not recovers:
            raise NotAllowedError(
                f"node {step.caller[0]} commits object {record.object_id} of node {record.node_id}"
            )

    def _committed(self, object_id: int, committed_at: int, step: _Step) -> Object:
        each = self._object(object_id)
        node, node_epoch = step.caller or (each.node, each.node_epoch)
        return objects.committed(each, node, node_epoch, committed_at)

    def _hold(self, object_id: int, held: Sequence[tuple[int, int, int]], step: _Step) -> None:
        """Check the data of a committed object. The data of an upload must continue its streams. For a
        compaction, `compaction_ended` checks the data.
        """
        self._compactions.holds(object_id, held)
        if step.swap is not None:
            return
        for stream_id, start, end in held:
            stream = self._stream(stream_id)
            self._streams[stream_id] = streams.committed(stream, self._actor(stream, step), start, end)

    def objects_destroyed(self, record: records.ObjectsDestroyed, _: _Step) -> None:
        for object_id in record.object_ids:
            self._objects[object_id] = objects.destroyed(self._object(object_id), record.destroyed_at_ms)

    def objects_claimed(self, record: records.ObjectsClaimed, step: _Step) -> None:
        collector = (record.node_id, record.node_epoch)
        self._require_current(collector)
        for object_id in record.object_ids:
            each = self._object(object_id)
            if each.phase is Phase.DESTROYED:
                self._compactions.require_unpinned(object_id, each.destroyed_at)
            self._objects[object_id] = objects.claimed(
                each,
                collector,
                step.now,
                record.claimed_until_ms,
                self.destroy_delay_ms - 1,
            )

    def objects_removed(self, record: records.ObjectsRemoved, step: _Step) -> None:
        for object_id in record.object_ids:
            self._objects[object_id] = objects.removed(self._object(object_id), step.caller)

    def _object(self, object_id: int) -> Object:
        each = self._objects.get(object_id)
        if each is None:
            raise NotAllowedError(f"object {object_id} was never prepared")
        return each

    # --- compactions and snapshots ---

    def compaction_leased(self, record: records.CompactionLeased, step: _Step) -> None:
        self._require_current((record.worker_id, record.worker_epoch))
        for source in record.source_ids:
            if self._object(source).phase is not Phase.COMMITTED:
                raise NotAllowedError(
                    f"object {source} is a source of a compaction, but its phase is"
                    f" {self._object(source).phase.name}"
                )
        self._compactions.leased(record, step.caller, step.now, self._is_current)

    def compaction_renewed(self, record: records.CompactionRenewed, step: _Step) -> None:
        self._compactions.renewed(record, step.caller)

    def compaction_ended(self, record: records.CompactionEnded, step: _Step) -> None:
        def is_committed(object_id: int) -> bool:
            return self._object(object_id).phase is Phase.COMMITTED

        def start_of(stream_id: int) -> int | None:
            stream = self._streams.get(stream_id)
            return None if stream is None else stream.start

        self._compactions.ended(record, step.caller, step.swap, start_of, is_committed)

    def snapshot_leased(self, record: records.SnapshotLeased, _: _Step) -> None:
        self._compactions.snapshot_leased(record)

    def snapshot_released(self, record: records.SnapshotReleased, _: _Step) -> None:
        self._compactions.snapshot_released(record)

    @property
    def living_objects(self) -> dict[Phase, int]:
        """Number of objects in each phase."""
        return dict(Counter(each.phase for each in self._objects.values()))


_RULES: dict[str, Callable[[CommittedSteps, Any, _Step], None]] = {
    rule.__name__: rule
    for rule in (
        CommittedSteps.node_registered,
        CommittedSteps.node_fenced,
        CommittedSteps.operation_completed,
        CommittedSteps.partition_changed,
        CommittedSteps.partition_move_begun,
        CommittedSteps.partition_move_cancelled,
        CommittedSteps.wal_opened,
        CommittedSteps.wal_trimmed,
        CommittedSteps.wal_recovery_assigned,
        CommittedSteps.wal_closed,
        CommittedSteps.stream_created,
        CommittedSteps.stream_opened,
        CommittedSteps.stream_closed,
        CommittedSteps.stream_trimmed,
        CommittedSteps.stream_deleted,
        CommittedSteps.objects_prepared,
        CommittedSteps.stream_object_committed,
        CommittedSteps.stream_set_object_committed,
        CommittedSteps.objects_destroyed,
        CommittedSteps.objects_claimed,
        CommittedSteps.objects_removed,
        CommittedSteps.compaction_leased,
        CommittedSteps.compaction_renewed,
        CommittedSteps.compaction_ended,
        CommittedSteps.snapshot_leased,
        CommittedSteps.snapshot_released,
    )
}
"""By name of the `kind` oneof; kinds without an entry belong to no modelled protocol."""


def find_forbidden_steps(
    batches: Iterable[records.RecordBatch], *, destroy_delay_ms: int = 0
) -> list[ForbiddenStep]:
    """Return the forbidden steps of a log, from its first batch on."""
    steps = CommittedSteps(destroy_delay_ms)
    for batch in batches:
        steps.take(batch)
    return steps.forbidden


def callers_of(batch: Sequence[records.Record]) -> list[Caller | None]:
    """Return for each record the process whose operation caused it, from the next OperationCompleted in the
    batch.
    """
    callers: list[Caller | None] = []
    caller: Caller | None = None
    for record in reversed(batch):
        if record.WhichOneof("kind") == "operation_completed":
            completed = record.operation_completed
            caller = (completed.node_id, completed.node_epoch)
        callers.append(caller)
    return callers[::-1]
