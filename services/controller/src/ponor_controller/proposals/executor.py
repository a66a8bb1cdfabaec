"""The executor: one operation in, one answer out, however often it is asked.

What lives here: rights of the caller, repeats, and the order of answers. A repeat of an operation that changed something gets the kept result; an answer
that changed nothing waits all the same until everything it was decided upon is committed, because it speaks of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.digest import operation_digest
from ponor_rpc.errors import OperationError, error_name
from ponor_runtime.identity import NodeId
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from ponor_controller.proposals.operation_trace import traced
from ponor_controller.proposals.pending import PendingOperation
from ponor_controller.proposals.proposer import Proposer
from ponor_controller.settings import ControllerSettings
from ponor_controller.validation.dispatch import validate
from ponor_controller.validation.situation import Decision, Situation


class Executor:
    """Executes operations one at a time, without waiting."""

    def __init__(
        self,
        proposer: Proposer,
        settings: ControllerSettings,
        randomness: Randomness,
        is_suspected: Callable[[NodeId], bool],
        telemetry: Telemetry,
    ) -> None:
        self._proposer = proposer
        self._settings = settings
        self._randomness = randomness
        self._is_suspected = is_suspected
        self._telemetry = telemetry

    def execute(self, pending: PendingOperation) -> None:
        """Decide, propose, and answer when it is committed."""
        if pending.operation.traceparent:
            pending = traced(pending, self._telemetry)
        try:
            self._require_rights(pending)
            digest = operation_digest(pending.operation)
            if self._replay(pending, digest):
                return
            decision = validate(pending.operation, self._situation(pending))
            if decision.records:
                self._propose(pending, decision, digest)
            else:
                self._answer_later(pending, decision.result, self._proposer.last_index)
        except OperationError as error:
            self._answer_later(
                pending, wire.OperationResult(error=error.to_proto()), self._proposer.last_index
            )

    def _require_rights(self, pending: PendingOperation) -> None:
        caller = pending.caller
        node = self._proposer.view.nodes.get(caller.node_id)
        assert node is not None, "sessions begin after registration"
        if node.node_epoch != caller.node_epoch:
            raise OperationError(
                error_pb2.ERROR_CODE_NODE_EPOCH_STALE,
                f"node {caller.node_id} is at epoch {node.node_epoch}; the process of epoch {caller.node_epoch} must stop",
            )
        if node.fenced:
            raise OperationError(
                error_pb2.ERROR_CODE_NODE_FENCED,
                f"epoch {caller.node_epoch} of node {caller.node_id} was fenced; it must stop",
            )
        if pending.operation.request_id < node.first_incomplete_id:
            raise OperationError(
                error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"operation {pending.operation.request_id} of node {caller.node_id} was answered and forgotten: "
                f"the node said that everything below {node.first_incomplete_id} is complete",
            )

    def _replay(self, pending: PendingOperation, digest: bytes) -> bool:
        """Answer a repeat with what was answered before; False when it is none."""
        kept = self._proposer.view.operations.get((pending.caller.node_id, pending.operation.request_id))
        if kept is None:
            return False
        if kept.digest != digest:
            raise OperationError(
                error_pb2.ERROR_CODE_REQUEST_MISMATCH,
                f"operation {pending.operation.request_id} of node {pending.caller.node_id} came before with another body; "
                "an id is used once",
            )
        self._answer_later(pending, wire.OperationResult.FromString(kept.result), kept.commit_index)
        return True

    def _situation(self, pending: PendingOperation) -> Situation:
        return Situation(
            caller=pending.caller,
            now_ms=self._proposer.now_ms(),
            view=self._proposer.view,
            settings=self._settings,
            randomness=self._randomness,
            is_suspected=self._is_suspected,
        )

    def _propose(self, pending: PendingOperation, decision: Decision, digest: bytes) -> None:
        decision.result.request_id = pending.operation.request_id
        completed = records_pb2.OperationCompleted(
            node_id=pending.caller.node_id,
            node_epoch=pending.caller.node_epoch,
            first_incomplete_id=pending.first_incomplete_id,
            request_id=pending.operation.request_id,
            digest=digest,
            result=decision.result.SerializeToString(),
        )
        records = [*decision.records, records_pb2.Record(operation_completed=completed)]
        index = self._proposer.propose(records, divisible=decision.divisible)
        self._answer_later(pending, decision.result, index)

    def _answer_later(self, pending: PendingOperation, result: wire.OperationResult, index: int) -> None:
        self._proposer.when_committed(index, partial(self._answer, pending, result, index))

    def _answer(self, pending: PendingOperation, result: wire.OperationResult, index: int) -> None:
        result.request_id = pending.operation.request_id
        refused = result.WhichOneof("outcome") == "error"
        result.commit_index = 0 if refused else index
        kind = pending.operation.WhichOneof("kind") or "unknown"
        outcome = error_name(result.error.code) if refused else "ok"
        self._telemetry.counter("ponor_controller_operations_total", operation=kind, result=outcome).add()
        pending.answer(result)
