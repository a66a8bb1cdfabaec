"""What real services committed, step by step, held against the protocols: trace validation.

What lives here: from committed record batches to steps of the models, and who took each. `find_forbidden_steps` judges a sequence; `CommittedSteps` takes batches
as they come. It reads records only: no image, no `apply`, no validator.

Every operation ends with its `OperationCompleted` in the same batch, so the process that took a step is known, except for the first parts of a change that was
divided over several batches. Rules that need what a record does not hold (the stream epoch that a commit named, the end that a close named) are the
exhaustive search's alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ponor.metadata.v1 import records_pb2 as records
from ponor_metadata.ranges import PackedRanges

from ponor_simulation.protocols import objects, streams
from ponor_simulation.protocols.objects import Object, Phase
from ponor_simulation.protocols.streams import NotAllowedError, Stream

Caller = tuple[int, int]
"""Node id and node epoch."""


@dataclass(frozen=True, slots=True)
class ForbiddenStep:
    """A record that the protocol does not allow where it stands."""

    index: int
    kind: str
    what: str

    def __str__(self) -> str:
        return f"batch {self.index}, {self.kind}: {self.what}"


@dataclass(slots=True)
class _Step:
    """The circumstances of one record."""

    index: int
    now: int
    caller: Caller | None


@dataclass(slots=True)
class CommittedSteps:
    """The models' state after the batches so far. A forbidden step is noted and changes nothing, so that one mistake is told once.

    Attributes:
        destroy_delay_ms: the controllers' setting; 0 checks nothing about the delay.
        taken: steps by kind of record, for coverage.
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
    _leader_epochs: dict[tuple[bytes, int], tuple[int, int]] = field(default_factory=dict)

    def take(self, batch: records.RecordBatch) -> list[ForbiddenStep]:
        """The next committed batch; answers what it does that is forbidden."""
        known = len(self.forbidden)
        self._frame(batch)
        callers = _callers(batch.records)
        for record, caller in zip(batch.records, callers, strict=True):
            kind = record.WhichOneof("kind")
            rule = _RULES.get(kind or "")
            if rule is None:
                continue
            try:
                rule(self, getattr(record, kind or ""), _Step(batch.index, batch.cluster_time_ms, caller))
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
                f"node {record.node_id} registers at epoch {record.node_epoch} after {newest}"
            )
        self._nodes[record.node_id] = record.node_epoch

    def node_fenced(self, record: records.NodeFenced, _: _Step) -> None:
        self._require_current((record.node_id, record.node_epoch))
        self._fenced.add((record.node_id, record.node_epoch))

    def operation_completed(self, record: records.OperationCompleted, _: _Step) -> None:
        self._require_current((record.node_id, record.node_epoch))
        request = (record.node_id, record.node_epoch, record.request_id)
        if request in self._requests:
            raise NotAllowedError(f"request {record.request_id} of node {record.node_id} is done twice")
        self._requests.add(request)

    def _require_current(self, caller: Caller) -> None:
        streams.require_newest(caller[0], caller[1], self._nodes.get(caller[0]))
        if caller in self._fenced:
            raise NotAllowedError(f"epoch {caller[1]} of node {caller[0]} acts, and is fenced")

    def partition_changed(self, record: records.PartitionChanged, _: _Step) -> None:
        key = (record.topic_id, record.partition)
        epoch, leader = self._leader_epochs.get(key, (-1, -1))
        if record.leader_epoch < epoch or (record.leader_epoch == epoch and record.leader_id != leader):
            raise NotAllowedError(
                f"leader epoch {record.leader_epoch} of node {record.leader_id} after {epoch} of node {leader}"
            )
        self._leader_epochs[key] = (record.leader_epoch, record.leader_id)

    # --- streams ---

    def stream_created(self, record: records.StreamCreated, _: _Step) -> None:
        if record.stream_id in self._streams:
            raise NotAllowedError(f"stream {record.stream_id} is made a second time")
        self._streams[record.stream_id] = Stream()

    def stream_opened(self, record: records.StreamOpened, step: _Step) -> None:
        self._require_current((record.node_id, record.node_epoch))
        if step.caller not in {None, (record.node_id, record.node_epoch)}:
            raise NotAllowedError(
                f"stream {record.stream_id} is opened for node {record.node_id} by {step.caller}"
            )
        stream = self._stream(record.stream_id)
        self._streams[record.stream_id] = streams.opened(
            stream, record.stream_epoch, record.node_id, record.node_epoch
        )

    def stream_closed(self, record: records.StreamClosed, step: _Step) -> None:
        stream = self._stream(record.stream_id)
        node = stream.node if step.caller is None else step.caller[0]
        self._streams[record.stream_id] = streams.closed(stream, node, record.stream_epoch)

    def stream_trimmed(self, record: records.StreamTrimmed, step: _Step) -> None:
        stream = self._stream(record.stream_id)
        if step.caller is not None and (not stream.open or step.caller[0] != stream.node):
            raise NotAllowedError(
                f"stream {record.stream_id} is trimmed by node {step.caller[0]}, which does not hold it open"
            )
        self._streams[record.stream_id] = streams.trimmed(stream, record.start_offset)

    def stream_deleted(self, record: records.StreamDeleted, _: _Step) -> None:
        self._stream(record.stream_id)
        self._streams[record.stream_id] = None

    def _stream(self, stream_id: int) -> Stream:
        stream = self._streams.get(stream_id)
        if stream is None:
            raise NotAllowedError(f"stream {stream_id} is deleted, or was never made")
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
        self._advance(record.stream_id, record.start_offset, record.end_offset, step)
        self._objects[record.object_id] = each

    def stream_set_object_committed(self, record: records.StreamSetObjectCommitted, step: _Step) -> None:
        each = self._committed(record.object_id, record.committed_at_ms, step)
        if step.caller is not None and step.caller[0] != record.node_id:
            raise NotAllowedError(
                f"object {record.object_id} of node {record.node_id} is committed by node {step.caller[0]}"
            )
        for piece in PackedRanges(record.packed_ranges).decoded:
            self._advance(piece.stream_id, piece.start_offset, piece.end_offset, step)
        self._objects[record.object_id] = each

    def _committed(self, object_id: int, committed_at: int, step: _Step) -> Object:
        each = self._object(object_id)
        node, node_epoch = step.caller or (each.node, each.node_epoch)
        return objects.committed(each, node, node_epoch, committed_at)

    def _advance(self, stream_id: int, start: int, end: int, step: _Step) -> None:
        stream = self._stream(stream_id)
        node = stream.node if step.caller is None else step.caller[0]
        self._streams[stream_id] = streams.committed(stream, node, start, end)

    def objects_destroyed(self, record: records.ObjectsDestroyed, _: _Step) -> None:
        for object_id in record.object_ids:
            self._objects[object_id] = objects.destroyed(self._object(object_id), record.destroyed_at_ms)

    def objects_claimed(self, record: records.ObjectsClaimed, step: _Step) -> None:
        collector = (record.node_id, record.node_epoch)
        self._require_current(collector)
        for object_id in record.object_ids:
            self._objects[object_id] = objects.claimed(
                self._object(object_id),
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

    @property
    def living_objects(self) -> dict[Phase, int]:
        """How many objects are in each phase."""
        return dict(Counter(each.phase for each in self._objects.values()))


_RULES: dict[str, Callable[[CommittedSteps, Any, _Step], None]] = {
    rule.__name__: rule
    for rule in (
        CommittedSteps.node_registered,
        CommittedSteps.node_fenced,
        CommittedSteps.operation_completed,
        CommittedSteps.partition_changed,
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
    )
}
"""By name of the `kind` oneof; kinds that are not here belong to no modelled protocol."""


def find_forbidden_steps(
    batches: Iterable[records.RecordBatch], *, destroy_delay_ms: int = 0
) -> list[ForbiddenStep]:
    """What a log does that the protocols forbid. The batches begin with the first one of the log."""
    steps = CommittedSteps(destroy_delay_ms)
    for batch in batches:
        steps.take(batch)
    return steps.forbidden


def _callers(batch: Sequence[records.Record]) -> list[Caller | None]:
    """Whose operation each record belongs to: the one that is completed next in the batch."""
    callers: list[Caller | None] = []
    caller: Caller | None = None
    for record in reversed(batch):
        if record.WhichOneof("kind") == "operation_completed":
            completed = record.operation_completed
            caller = (completed.node_id, completed.node_epoch)
        callers.append(caller)
    return callers[::-1]
