"""Execute operations: check the caller, detect repetitions, validate, propose, and pass the answer on.

A repeated operation gets the stored result of the first execution. `answers` sends an answer when the
operation's records are committed; without records, when all rows that the decision was based on are committed
and leadership is confirmed.

`execute_operations` executes waiting operations as fast as the log accepts batches. Operations that wait at
the same time share a batch. It pauses while too many batches are in flight, and yields to the event loop
often enough for heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.client.operations import operation_digest
from ponor_metadata.nouns.nodes import NODES, OPERATIONS
from ponor_rpc.errors import OperationError
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeId
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from ponor_controller.kernel.answers import Answers, traced
from ponor_controller.kernel.decisions import Decision, Situation, Validate
from ponor_controller.kernel.lanes import Lanes
from ponor_controller.kernel.operation import PendingOperation
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.settings import ControllerSettings


class Executor:
    """Executes operations one at a time, without awaiting anything."""

    def __init__(
        self,
        proposer: Proposer,
        answers: Answers,
        validate: Validate,
        settings: ControllerSettings,
        randomness: Randomness,
        is_suspected: Callable[[NodeId], bool],
        telemetry: Telemetry,
    ) -> None:
        self._proposer = proposer
        self._answers = answers
        self._validate = validate
        self._settings = settings
        self._randomness = randomness
        self._is_suspected = is_suspected
        self._telemetry = telemetry
        self._newest: Situation | None = None

    def execute(self, pending: PendingOperation) -> None:
        """Decide on an operation, propose its records, and answer after the commit.

        A controller that does not lead refuses it with NOT_LEADER.
        """
        if pending.operation.traceparent:
            pending = traced(pending, self._telemetry)
        try:
            self._proposer.require_leading()
            self._require_rights(pending)
            digest = operation_digest(pending.operation)
            if self._replay(pending, digest):
                return
            decision = self._validate(pending.operation, self._situation(pending), pending.kind)
            self._require_answerable(decision.result)
            if decision.records or decision.closing_records:
                self._propose(pending, decision, digest)
            else:
                self._answers.after_confirmation(pending, decision.result, self._proposer.last_index)
        except OperationError as error:
            if error.code == error_pb2.ERROR_CODE_NOT_LEADER:
                self._answers.refuse(pending, error)
                return
            refusal = wire.OperationResult(error=error.to_proto())
            self._answers.after_confirmation(pending, refusal, self._proposer.last_index)

    def _require_rights(self, pending: PendingOperation) -> None:
        caller = pending.caller
        node = self._proposer.view[NODES].get(caller.node_id)
        assert node is not None, "the node of a session is not registered"
        if node.node_epoch != caller.node_epoch:
            raise OperationError(
                error_pb2.ERROR_CODE_NODE_EPOCH_STALE,
                f"node {caller.node_id} is at epoch {node.node_epoch}; the process of epoch"
                f" {caller.node_epoch} must stop",
            )
        if node.fenced:
            raise OperationError(
                error_pb2.ERROR_CODE_NODE_FENCED,
                f"epoch {caller.node_epoch} of node {caller.node_id} was fenced; the process must stop",
            )
        if pending.operation.request_id < node.first_incomplete_id:
            raise OperationError(
                error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"operation {pending.operation.request_id} of node {caller.node_id} was answered before, and"
                " its result is deleted: the node reported all operations below"
                f" {node.first_incomplete_id} as complete",
            )

    def _require_answerable(self, result: wire.OperationResult) -> None:
        """Refuse an operation whose answer does not fit into a batch and into a frame."""
        size_bytes, bytes_max = result.ByteSize(), self._settings.batch_bytes_max // 2
        if size_bytes > bytes_max:
            raise OperationError(
                error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"the answer would have {size_bytes} bytes; the limit is {bytes_max}; request less at once",
            )

    def _replay(self, pending: PendingOperation, digest: bytes) -> bool:
        """Answer a repeated operation with the stored result. Returns False if the operation is new."""
        kept = self._proposer.view[OPERATIONS].get((pending.caller.node_id, pending.operation.request_id))
        if kept is None:
            return False
        if kept.digest != digest:
            raise OperationError(
                error_pb2.ERROR_CODE_REQUEST_MISMATCH,
                f"operation {pending.operation.request_id} of node {pending.caller.node_id} was sent"
                " before with another body; a request id can be used only once",
            )
        result = wire.OperationResult.FromString(kept.result)
        self._answers.after_commit(pending, result, kept.result, kept.commit_index)
        return True

    def _situation(self, pending: PendingOperation) -> Situation:
        # All operations of one caller in one batch share one `Situation`.
        newest, now_ms = self._newest, self._proposer.now_ms()
        if newest is None or newest.now_ms != now_ms or newest.caller is not pending.caller:
            newest = self._newest = Situation(
                caller=pending.caller,
                now_ms=now_ms,
                view=self._proposer.view,
                settings=self._settings,
                randomness=self._randomness,
                is_suspected=self._is_suspected,
            )
        return newest

    def _propose(self, pending: PendingOperation, decision: Decision, digest: bytes) -> None:
        request_id = decision.result.request_id = pending.operation.request_id
        encoded = decision.result.SerializeToString()
        record = records_pb2.Record()
        completed = record.operation_completed  # filled in place: a separate message would be copied
        completed.node_id = pending.caller.node_id
        completed.node_epoch = pending.caller.node_epoch
        completed.first_incomplete_id = pending.first_incomplete_id
        completed.request_id = request_id
        completed.digest = digest
        completed.result = encoded
        rows = max(decision.rows, len(decision.records))
        decision.records.append(record)
        decision.records.extend(decision.closing_records)
        index = self._proposer.add(decision.records, divisible=decision.divisible, rows=rows)
        self._answers.after_commit(pending, decision.result, encoded, index)


SLICE_NS = 10_000_000
"""Time in ns for which operations are executed before the loop yields to other tasks."""
SLICES_MAX = 4
"""Slices that may share a batch. With one slice per batch, a busy machine would create small batches. A batch
costs as much as 40 operations, so the load would rise further."""
RETRY_SECONDS = 0.01
"""Pause before the next attempt to propose an open batch, during a transfer of leadership (which may fail) or
while the log has no room."""


async def execute_operations(lanes: Lanes, executor: Executor, proposer: Proposer, clock: Clock) -> None:
    """Execute operations until cancelled."""
    slice_began_ns, slices = clock.monotonic_ns(), 1
    while True:
        pending = lanes.take()
        if pending is None:
            proposer.propose_open()
            if proposer.has_open_batch:
                await clock.sleep(RETRY_SECONDS)
                continue
            proposer.flush()
            await lanes.filled()
            await proposer.turn()
            slice_began_ns, slices = clock.monotonic_ns(), 1
            continue
        executor.execute(pending)
        is_over = clock.monotonic_ns() - slice_began_ns > SLICE_NS
        if is_over or not proposer.has_turn:
            slices += 1
            if slices > SLICES_MAX or not proposer.has_turn:
                proposer.propose_open()
                slices = 1
            await clock.sleep(0)
            await proposer.turn()
            slice_began_ns = clock.monotonic_ns()
