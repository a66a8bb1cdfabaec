"""Controller operations of a compaction task: lease, renew, prepare, commit, end.

The session retries a lost request under the same request id until the outcome is known, so a commit takes
effect exactly once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_runtime.identity import ObjectId
from s3stream.compaction.executor import CompactedObjects
from s3stream.compaction.plan import OutputKind, PlannedOutput
from s3stream.errors import CompactionLimitError
from s3stream.ports import PreparedObjects, StreamRange, UploadedObject
from s3stream.settings import COMMIT_RANGES_MAX

from ponor_compactor.leased_task import LeasedTask
from ponor_compactor.settings import CompactorSettings

COMMIT_BYTES_MAX: Final = 1016 * 1024
"""Maximum size of a commit: an operation with its envelope may have 1 MiB
(`SessionSettings.bytes_in_flight_max`).
"""
REASON_CHARACTERS_MAX: Final = 256
_ID_OF_ANY: Final = ObjectId(2**55 - 1)
"""Placeholder for size estimates; no id has a longer encoding."""

Result = wire.CompactionOutcome
WriteSeen = Callable[[], Awaitable[None]]


class Submits(Protocol):
    """The part of `ponor_metadata.client.session.SessionClient` that `ControllerTasks` uses."""

    async def submit(self, operation: wire.Operation) -> wire.OperationResult:
        """Execute an operation exactly once and return its result."""
        ...


class ControllerTasks:
    """Compaction tasks of one session."""

    def __init__(
        self, session: Submits, settings: CompactorSettings, write_seen: WriteSeen | None = None
    ) -> None:
        """`write_seen` records in the store how far this node saw the controllers' log, or is None."""
        self._session = session
        self._settings = settings
        self._write_seen = write_seen

    async def lease(self) -> LeasedTask | None:
        """Lease a task; return None if the controller has none.

        Raises:
            OperationError: this cluster does not compact (yet); the message gives the reason.
            NodeFencedError, SessionClosedError: this process must stop.
        """
        settings = self._settings
        body = wire.LeaseCompaction(
            ttl_ms=settings.compactor_lease_ttl_ms, source_bytes_max=settings.compactor_source_bytes_max
        )
        result = await self._session.submit(wire.Operation(lease_compaction=body))
        if result.WhichOneof("outcome") != "compaction_granted":
            return None
        return LeasedTask.granted(result.compaction_granted)

    async def renew(self, task: LeasedTask) -> bool:
        """Renew the lease; return whether the caller still holds it."""
        body = wire.RenewCompaction(
            task_id=task.task_id, token=task.token, ttl_ms=self._settings.compactor_lease_ttl_ms
        )
        result = await self._session.submit(wire.Operation(renew_compaction=body))
        return result.compaction_outcome.result == Result.RESULT_DONE

    async def prepare(self, count: int) -> PreparedObjects:
        """Reserve object ids for the outputs.

        Raises:
            OperationError: the controller refuses; the message gives the reason.
        """
        body = wire.PrepareObjects(count=count, ttl_ms=self._settings.compactor_prepared_ttl_ms)
        reserved = (await self._session.submit(wire.Operation(prepare_objects=body))).objects_reserved
        if self._write_seen is not None:
            # First record how far this node saw the controllers' log. If the controllers later start from an
            # older copy of their log, which would assign these ids again, the record exposes this.
            await self._write_seen()
        return PreparedObjects(
            ObjectId(reserved.first_object_id), reserved.count, reserved.namespace, reserved.bucket_index
        )

    async def commit(self, task: LeasedTask, made: CompactedObjects) -> wire.CompactionOutcome:
        """Commit the outputs in place of the sources.

        Raises:
            OperationError: the controller refused and changed nothing.
            OperationTooLargeError: the commit is too large; `require_fit` checks this before the copy.
        """
        body = _commit(task, made.stream_set_object, made.stream_objects)
        result = await self._session.submit(wire.Operation(commit_compaction=body))
        return result.compaction_outcome

    async def end(self, task: LeasedTask, reason: str) -> None:
        """End a task without a commit and release its sources."""
        body = wire.EndCompaction(
            task_id=task.task_id, token=task.token, reason=reason[:REASON_CHARACTERS_MAX]
        )
        await self._session.submit(wire.Operation(end_compaction=body))


def require_fit(task: LeasedTask, outputs: Iterable[PlannedOutput]) -> None:
    """Check before the copy that a plan's commit fits into one operation.

    Raises:
        CompactionLimitError: the commit exceeds a bound, which the message names.
    """
    shared: UploadedObject | None = None
    own: list[UploadedObject] = []
    for output in outputs:
        made = UploadedObject(_ID_OF_ANY, output.size_bytes, output.ranges)
        if output.kind is OutputKind.STREAM_SET_OBJECT:
            shared = made
        else:
            own.append(made)
    ranges = len(own) + (0 if shared is None else len(shared.ranges))
    if ranges > COMMIT_RANGES_MAX:
        raise CompactionLimitError(
            f"the commit of {task} has {ranges} ranges; the limit is {COMMIT_RANGES_MAX}; plan fewer sources"
        )
    size_bytes = _commit(task, shared, own).ByteSize()
    if size_bytes > COMMIT_BYTES_MAX:
        raise CompactionLimitError(
            f"the commit of {task} needs {size_bytes} bytes; the limit is {COMMIT_BYTES_MAX}; plan fewer"
            " streams"
        )


def _commit(
    task: LeasedTask, shared: UploadedObject | None, own: Iterable[UploadedObject]
) -> wire.CommitCompaction:
    body = wire.CommitCompaction(task_id=task.task_id, token=task.token, planned_index=task.planned_index)
    if shared is not None:
        body.stream_set_object.object_id = shared.object_id
        body.stream_set_object.size_bytes = shared.size_bytes
        body.stream_set_object.ranges.extend(map(_range, shared.ranges))
    for each in own:
        (only,) = each.ranges
        body.stream_objects.add(object_id=each.object_id, size_bytes=each.size_bytes, range=_range(only))
    return body


def _range(part: StreamRange) -> wire.UploadedRange:
    return wire.UploadedRange(
        stream_id=part.stream_id,
        stream_epoch=part.epoch,
        start_offset=part.start_offset,
        end_offset=part.end_offset,
    )
