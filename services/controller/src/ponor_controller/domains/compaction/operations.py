"""Operations on compaction tasks: lease, renew, commit, end.

A task belongs to its worker until the worker's epoch ends or the task is leased to another worker. When a
lease expires, the worker may still commit until another worker gets a lease. Results such as FENCED are typed
results and not errors, because workers get them in normal operation.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.compactions import COMPACTIONS, CompactionKind, CompactionRow
from ponor_metadata.nouns.nodes import is_current
from ponor_metadata.nouns.objects import OBJECTS, STREAM_SET_OBJECTS, ObjectRow, ObjectState
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAMS
from ponor_metadata.tables.ranges import (
    DecodedRanges,
    RangesOverlapError,
    decode_ranges,
    encode_runs,
    join_runs,
)
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId, ObjectId, StreamId

from ponor_controller.domains.compaction.coverage import Run, StartOf, find_difference
from ponor_controller.domains.compaction.offering import Offer, Offering
from ponor_controller.kernel.decisions import Decision, Situation, invalid, require_distinct, require_role
from ponor_controller.shared_rules.object_commits import (
    destructions,
    pack_ranges,
    require_commit_size,
    require_prepared,
    run_of,
    stream_object_record,
    stream_set_object_record,
)

Outcome = wire.CompactionOutcome
REASON_CHARACTERS_MAX = 256
VACANT_LEASES_MAX = 3
"""Number of lease times for which a task waits for a worker with a sufficient byte budget. After that the
task is ended, and its sources are offered in smaller tasks."""


def lease_compaction(body: wire.LeaseCompaction, situation: Situation, offers: Offering) -> Decision:
    """Lease a vacant task or, if there is none, a new task. If no task is worthwhile, the answer contains no
    task.

    Tasks that waited too long for a worker are ended.
    """
    require_role(situation, records_pb2.NODE_ROLE_COMPACTOR)
    if body.ttl_ms < 1 or body.source_bytes_max < 1:
        raise invalid(
            f"ttl_ms is {body.ttl_ms} and source_bytes_max is {body.source_bytes_max}; both must be at least"
            " 1"
        )
    decision = Decision()
    for row in situation.view[COMPACTIONS]:
        if not is_vacant(row, situation.view, situation.now_ms):
            continue
        left = sources_left(situation.view, row)
        vacant_ms = situation.now_ms - row.leased_until_ms
        is_waiting = vacant_ms <= VACANT_LEASES_MAX * _ttl_ms(body.ttl_ms, situation)
        fits = sum(each.size_bytes for each in left) <= body.source_bytes_max
        attempts_max = situation.settings.compaction.compaction_attempts_max
        if not left or row.token >= attempts_max or not (fits or is_waiting):
            decision.records.append(ended(row))
            offers.given_up(row, situation.now_ms)
        elif fits:
            return _grant(body, situation, decision, _Lease.again(row, left))
    if len(situation.view[COMPACTIONS]) >= situation.settings.compaction.compaction_tasks_max:
        return decision
    offer = offers.next(situation.view, situation.now_ms, body.source_bytes_max)
    return decision if offer is None else _grant(body, situation, decision, _Lease.first(offer, situation))


def renew_compaction(body: wire.RenewCompaction, situation: Situation) -> Decision:
    """Extend a lease; FENCED if the task ended or belongs to another worker."""
    require_role(situation, records_pb2.NODE_ROLE_COMPACTOR)
    row = _held(body.task_id, body.token, situation)
    if row is None:
        return _outcome(Outcome.RESULT_FENCED, _not_held(body.task_id))
    if body.ttl_ms < 1:
        raise invalid(f"ttl_ms is {body.ttl_ms}; it must be at least 1")
    decision = _outcome(Outcome.RESULT_DONE)
    until_ms = _until_ms(body.ttl_ms, situation)
    if until_ms > row.leased_until_ms:
        renewed = records_pb2.CompactionRenewed(task_id=row.task_id, leased_until_ms=until_ms)
        decision.records.append(records_pb2.Record(compaction_renewed=renewed))
    return decision


def commit_compaction(body: wire.CommitCompaction, situation: Situation, offers: Offering) -> Decision:
    """Replace the sources by the outputs and end the task in one batch. Refuse outputs without all live
    data.
    """
    require_role(situation, records_pb2.NODE_ROLE_COMPACTOR)
    row = _held(body.task_id, body.token, situation)
    if row is None:
        if _was_committed(body, situation):
            return _outcome(Outcome.RESULT_DONE, f"compaction {body.task_id} is already committed")
        return _outcome(Outcome.RESULT_FENCED, _not_held(body.task_id))
    if body.planned_index > situation.view.index:
        return _outcome(
            Outcome.RESULT_STALE_PLAN,
            f"the plan is based on index {body.planned_index}, but the log ends at index"
            f" {situation.view.index}",
        )
    packed = _check_shape(body, row, situation)
    sources = sources_left(situation.view, row)
    if not sources:
        return _outcome(Outcome.RESULT_SOURCE_GONE, f"all sources of compaction {row.task_id} are destroyed")
    start_of = _starts(situation.view)
    set_ranges = decode_ranges(packed)
    complete = len(sources) == len(row.source_ids)
    try:
        held = join_runs(_held_by(sources, situation.view))
        made = join_runs([_stream_object_ranges(body), set_ranges])
        problem = find_difference(held, made, start_of, complete=complete)
    except RangesOverlapError as error:
        problem = str(error)
    if problem is not None:
        return _outcome(Outcome.RESULT_STALE_PLAN, f"compaction {row.task_id}: {problem}")
    decision = _swap(body, row, sources, _Outputs(set_ranges, packed, start_of, situation.now_ms))
    _require_one_batch(decision, row, situation, offers)
    return decision


def end_compaction(body: wire.EndCompaction, situation: Situation, offers: Offering) -> Decision:
    """End a task and free its sources. Nothing changes if it ended or belongs to another worker."""
    require_role(situation, records_pb2.NODE_ROLE_COMPACTOR)
    row = _held(body.task_id, body.token, situation)
    if row is None:
        return Decision()
    offers.given_up(row, situation.now_ms)
    return Decision([ended(row)])


def is_vacant(row: CompactionRow, view: View, now_ms: int) -> bool:
    """Whether the task may be leased to another worker: the lease expired or the worker's epoch ended."""
    return row.leased_until_ms < now_ms or not is_current(view, row.worker_id, row.worker_epoch)


def sources_left(view: View, row: CompactionRow) -> list[ObjectRow]:
    """The sources that still exist. A source is destroyed only when its last live offset is trimmed, so the
    others contain all live data.
    """
    rows = map(view[OBJECTS].get, row.source_ids)
    return [each for each in rows if each is not None and each.state is ObjectState.COMMITTED]


def ended(row: CompactionRow) -> records_pb2.Record:
    """The record that ends a task and frees its remaining sources."""
    return records_pb2.Record(compaction_ended=records_pb2.CompactionEnded(task_id=row.task_id))


@dataclass(frozen=True, slots=True)
class _Lease:
    """A lease that is not yet given to a worker, and the rows of its sources."""

    task_id: int
    token: int
    kind: CompactionKind
    node_id: int
    stream_id: int
    sources: Sequence[ObjectRow]

    @staticmethod
    def again(row: CompactionRow, left: Sequence[ObjectRow]) -> _Lease:
        return _Lease(row.task_id, row.token + 1, row.kind, row.node_id, row.stream_id, left)

    @staticmethod
    def first(offer: Offer, situation: Situation) -> _Lease:
        task_id = counters.next_value(situation.view, counters.COMPACTION)
        return _Lease(task_id, 1, offer.kind, offer.node_id, offer.stream_id, offer.sources)


def _grant(body: wire.LeaseCompaction, situation: Situation, decision: Decision, lease: _Lease) -> Decision:
    caller, until_ms = situation.caller, _until_ms(body.ttl_ms, situation)
    leased = records_pb2.CompactionLeased(
        task_id=lease.task_id,
        kind=records_pb2.CompactionKind.ValueType(lease.kind),
        node_id=lease.node_id,
        stream_id=lease.stream_id,
        source_ids=[each.object_id for each in lease.sources],
        worker_id=caller.node_id,
        worker_epoch=caller.node_epoch,
        token=lease.token,
        leased_until_ms=until_ms,
    )
    granted = wire.CompactionGranted(
        task_id=lease.task_id,
        token=lease.token,
        kind=leased.kind,
        node_id=lease.node_id,
        stream_id=lease.stream_id,
        leased_until_ms=until_ms,
        planned_index=situation.view.index,
    )
    for each in lease.sources:
        granted.sources.add(
            object_id=each.object_id,
            namespace=each.namespace,
            bucket_index=each.bucket_index,
            size_bytes=each.size_bytes,
        )
    for stream_id in _streams_in(lease, situation.view):
        stream = situation.view[STREAMS].get(stream_id)
        if stream is not None:
            granted.streams.add(
                stream_id=stream_id,
                stream_epoch=stream.stream_epoch,
                start_offset=stream.start_offset,
                end_offset=stream.end_offset,
            )
    decision.records.append(records_pb2.Record(compaction_leased=leased))
    decision.result = wire.OperationResult(compaction_granted=granted)
    return decision


def _streams_in(lease: _Lease, view: View) -> list[StreamId]:
    if lease.kind is CompactionKind.STREAM_OBJECTS:
        return [StreamId(lease.stream_id)]
    found: set[StreamId] = set()
    for each in lease.sources:
        held = view[STREAM_SET_OBJECTS].get(each.object_id)
        assert held is not None
        found.update(held.ranges.decoded.stream_ids())
    return sorted(found)


def _check_shape(body: wire.CommitCompaction, row: CompactionRow, situation: Situation) -> bytes:
    """Refuse a malformed commit; returns the packed ranges of the stream set object."""
    packed = b""
    set_object = body.stream_set_object if body.HasField("stream_set_object") else None
    set_ranges = 0 if set_object is None else len(set_object.ranges)
    require_commit_size(set_ranges, len(body.stream_objects), situation)
    ids = [each.object_id for each in body.stream_objects]
    if set_object is not None:
        _check_kind(body, row)
        ids.append(set_object.object_id)
        packed = pack_ranges(set_object.ranges)
    require_distinct(ids, "object")
    for each in body.stream_objects:
        if not 0 <= each.range.start_offset < each.range.end_offset:
            raise invalid(
                f"stream object {each.object_id} has the empty or negative range"
                f" [{each.range.start_offset}, {each.range.end_offset})"
            )
        require_prepared(each.object_id, each.size_bytes, situation)
    if set_object is not None:
        require_prepared(set_object.object_id, set_object.size_bytes, situation)
    return packed


def _check_kind(body: wire.CommitCompaction, row: CompactionRow) -> None:
    """Refuse a stream set object that the kind of the task does not permit."""
    task = f"compaction {row.task_id} is of kind {row.kind.name}"
    if row.kind is CompactionKind.STREAM_OBJECTS:
        raise invalid(f"{task} and may produce only stream objects")
    if row.kind is CompactionKind.FORCE_SPLIT and not body.stream_objects:
        raise invalid(f"{task}; it must produce stream objects in addition to a stream set object")


def _starts(view: View) -> StartOf:
    """Return a function that returns the start offset of a stream. It reads each row only once."""
    found: dict[StreamId, int | None] = {}

    def start_of(stream_id: StreamId) -> int | None:
        if stream_id not in found:
            stream = view[STREAMS].get(stream_id)
            found[stream_id] = None if stream is None else stream.start_offset
        return found[stream_id]

    return start_of


def _held_by(sources: Sequence[ObjectRow], view: View) -> list[DecodedRanges]:
    parts: list[DecodedRanges] = []
    for each in sources:
        single = view[STREAM_OBJECTS].get(each.object_id)
        if single is not None:
            run = single.stream_id, single.start_offset, single.end_offset
            parts.append(DecodedRanges(*(array("q", [number]) for number in run)))
            continue
        several = view[STREAM_SET_OBJECTS].get(each.object_id)
        assert several is not None, f"object {each.object_id} is COMMITTED but has no ranges"
        parts.append(several.ranges.decoded)
    return parts


@dataclass(slots=True)
class _Outputs:
    """Records that commit the outputs, and the ids of outputs without live data."""

    set_ranges: DecodedRanges
    packed: bytes
    start_of: StartOf
    now_ms: int
    records: list[records_pb2.Record] = field(default_factory=list)
    garbage_ids: list[int] = field(default_factory=list)

    def add_stream_object(self, made: wire.UploadedStreamObject) -> None:
        if self._is_live(run_of(made.range)):
            self.records.append(stream_object_record(made, self.now_ms))
        else:
            self.garbage_ids.append(made.object_id)

    def add_set_object(self, made: wire.UploadedStreamSetObject, node_id: NodeId) -> None:
        live = [run for run in self.set_ranges.runs() if self._is_live(run)]
        if live:
            packed = self.packed if len(live) == len(self.set_ranges) else encode_runs(live)
            self.records.append(stream_set_object_record(made, packed, node_id, self.now_ms))
        else:
            self.garbage_ids.append(made.object_id)

    def _is_live(self, run: Run) -> bool:
        start = self.start_of(StreamId(run[0]))
        return start is not None and run[2] > start


def _swap(
    body: wire.CommitCompaction, row: CompactionRow, sources: Sequence[ObjectRow], outputs: _Outputs
) -> Decision:
    for each in sorted(body.stream_objects, key=lambda each: (each.range.stream_id, each.range.start_offset)):
        outputs.add_stream_object(each)
    if body.HasField("stream_set_object"):
        outputs.add_set_object(body.stream_set_object, row.node_id)
    destroyed = [*(each.object_id for each in sources), *outputs.garbage_ids]
    decision = _outcome(Outcome.RESULT_DONE)
    decision.records.extend(destructions(destroyed, outputs.now_ms))
    decision.records.extend(outputs.records)
    decision.records.append(ended(row))
    return decision


def _require_one_batch(
    decision: Decision, row: CompactionRow, situation: Situation, offers: Offering
) -> None:
    """Require that the replacement fits into one batch: readers must never see both sources and outputs, or
    neither.
    """
    size_bytes = sum(record.ByteSize() for record in decision.records)
    bytes_max = (
        situation.settings.batch_bytes_max // 2
    )  # the batch also contains the answer, and the framing of each record
    if size_bytes > bytes_max:
        offers.given_up(row, situation.now_ms)
        raise invalid(
            f"the commit of compaction {row.task_id} needs {size_bytes} bytes of records; the limit is"
            f" {bytes_max}. End the compaction: the controller will offer a smaller one"
        )


def _was_committed(body: wire.CommitCompaction, situation: Situation) -> bool:
    """Whether this commit was applied before: no output is still PREPARED, and at least one was committed."""
    caller = situation.caller
    ids = [each.object_id for each in body.stream_objects]
    if body.HasField("stream_set_object"):
        ids.append(body.stream_set_object.object_id)
    rows = [situation.view[OBJECTS].get(ObjectId(each)) for each in ids]
    return any(each is not None and each.size_bytes > 0 for each in rows) and all(
        each is not None
        and each.state is not ObjectState.PREPARED
        and (each.node_id, each.node_epoch) == (caller.node_id, caller.node_epoch)
        for each in rows
    )


def _held(task_id: int, token: int, situation: Situation) -> CompactionRow | None:
    row, caller = situation.view[COMPACTIONS].get(task_id), situation.caller
    if row is None:
        return None
    held = (row.worker_id, row.worker_epoch, row.token) == (caller.node_id, caller.node_epoch, token)
    return row if held else None


def _stream_object_ranges(body: wire.CommitCompaction) -> DecodedRanges:
    runs = [run_of(each.range) for each in body.stream_objects]
    ids, starts, ends = zip(*runs, strict=True) if runs else ((), (), ())
    return DecodedRanges(array("q", ids), array("q", starts), array("q", ends))


def _until_ms(ttl_ms: int, situation: Situation) -> int:
    return situation.now_ms + _ttl_ms(ttl_ms, situation)


def _ttl_ms(ttl_ms: int, situation: Situation) -> int:
    return min(ttl_ms, situation.settings.compaction.compaction_lease_ttl_ms_max)


def _outcome(result: wire.CompactionOutcome.Result.ValueType, message: str = "") -> Decision:
    outcome = wire.CompactionOutcome(result=result, message=message)
    return Decision(result=wire.OperationResult(compaction_outcome=outcome))


def _not_held(task_id: int) -> str:
    return f"compaction {task_id} has ended, or is leased to another worker; stop it"
