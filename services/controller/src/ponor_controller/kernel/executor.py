"""The executor: one operation in, one answer out, however often it is asked.

What lives here: rights of the caller, repeats, and the order of answers. A repeat of an operation that changed something gets the kept result; an answer
that changed nothing waits all the same until everything it was decided upon is committed, because it speaks of it, and until a majority confirmed that
whoever decided still leads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.client.operations import operation_digest
from ponor_metadata.nouns.nodes import NODES, OPERATIONS
from ponor_rpc.errors import OperationError, error_name
from ponor_rpc.joined_messages import number_field
from ponor_runtime.identity import NodeId
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Counter, Telemetry

from ponor_controller.domains.compaction.offer import Offers
from ponor_controller.kernel.confirmed_answers import ConfirmedAnswers
from ponor_controller.kernel.decisions import Decision, Situation
from ponor_controller.kernel.operation import PendingOperation
from ponor_controller.kernel.operation_trace import traced
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.operations import validate
from ponor_controller.settings import ControllerSettings

COMMIT_INDEX: Final = wire.OperationResult.COMMIT_INDEX_FIELD_NUMBER

_Reply: TypeAlias = tuple[PendingOperation, bytes, Counter, int]
"""An answer: to what, the encoded result as the log keeps it, who counts it, and the index at which it holds (0: none), which the answer says behind the result."""


class Executor:
    """Executes operations one at a time, without waiting."""

    def __init__(
        self,
        proposer: Proposer,
        settings: ControllerSettings,
        randomness: Randomness,
        is_suspected: Callable[[NodeId], bool],
        telemetry: Telemetry,
        confirmed: ConfirmedAnswers,
        compactions: Offers,
    ) -> None:
        self._proposer = proposer
        self._confirmed = confirmed
        self._compactions = compactions
        self._settings = settings
        self._randomness = randomness
        self._is_suspected = is_suspected
        self._telemetry = telemetry
        self._counters: dict[tuple[str | None, str], Counter] = {}
        self._newest: Situation | None = None
        self._stamp = (0, b"")
        """A commit index, and the field that says so: the same for all that share a batch."""

    def execute(self, pending: PendingOperation) -> None:
        """Decide, propose, and answer when it is committed. Only while this controller leads: what is waiting otherwise is refused."""
        if pending.operation.traceparent:
            pending = traced(pending, self._telemetry)
        try:
            self._proposer.require_leading()
            self._require_rights(pending)
            digest = operation_digest(pending.operation)
            if self._replay(pending, digest):
                return
            decision = validate(pending.operation, self._situation(pending), pending.kind)
            self._require_answerable(decision.result)
            if decision.records or decision.parting:
                self._propose(pending, decision, digest)
            else:
                self._answer_unchanged(pending, decision.result)
        except OperationError as error:
            if error.code == error_pb2.ERROR_CODE_NOT_LEADER:
                self.refuse(pending, error)
                return
            self._answer_unchanged(pending, wire.OperationResult(error=error.to_proto()))

    def refuse(self, pending: PendingOperation, error: OperationError) -> None:
        """Answer an operation that was not executed, or whose end this controller will not see: the node sends it to the leader, under the same id."""
        self._answer(self._reply(pending, wire.OperationResult(error=error.to_proto()), 0))

    def _require_rights(self, pending: PendingOperation) -> None:
        caller = pending.caller
        node = self._proposer.view[NODES].get(caller.node_id)
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

    def _require_answerable(self, result: wire.OperationResult) -> None:
        """Refuse an operation whose answer would not fit into a batch and into a frame, before anything is changed."""
        size_bytes, bytes_max = result.ByteSize(), self._settings.batch_bytes_max // 2
        if size_bytes > bytes_max:
            raise OperationError(
                error_pb2.ERROR_CODE_INVALID_REQUEST,
                f"the answer has {size_bytes} bytes, an answer holds at most {bytes_max}; ask for less at once",
            )

    def _replay(self, pending: PendingOperation, digest: bytes) -> bool:
        """Answer a repeat with what was answered before; False when it is none."""
        kept = self._proposer.view[OPERATIONS].get((pending.caller.node_id, pending.operation.request_id))
        if kept is None:
            return False
        if kept.digest != digest:
            raise OperationError(
                error_pb2.ERROR_CODE_REQUEST_MISMATCH,
                f"operation {pending.operation.request_id} of node {pending.caller.node_id} came before with another body; "
                "an id is used once",
            )
        result = wire.OperationResult.FromString(kept.result)
        self._answer_later(self._reply(pending, result, kept.commit_index), kept.commit_index)
        return True

    def _situation(self, pending: PendingOperation) -> Situation:
        # It is the same for all that one caller asks in one batch.
        newest, now_ms = self._newest, self._proposer.now_ms()
        if newest is None or newest.now_ms != now_ms or newest.caller is not pending.caller:
            newest = self._newest = Situation(
                caller=pending.caller,
                now_ms=now_ms,
                view=self._proposer.view,
                settings=self._settings,
                randomness=self._randomness,
                is_suspected=self._is_suspected,
                compactions=self._compactions,
            )
        return newest

    def _propose(self, pending: PendingOperation, decision: Decision, digest: bytes) -> None:
        request_id = decision.result.request_id = pending.operation.request_id
        encoded = decision.result.SerializeToString()
        record = records_pb2.Record()
        completed = record.operation_completed  # filled where it is: made aside it would be copied
        completed.node_id = pending.caller.node_id
        completed.node_epoch = pending.caller.node_epoch
        completed.first_incomplete_id = pending.first_incomplete_id
        completed.request_id = request_id
        completed.digest = digest
        completed.result = encoded
        decision.records.append(record)
        decision.records.extend(decision.parting)
        index = self._proposer.gather(decision.records, divisible=decision.divisible)
        counter = self._counter(pending.kind, _outcome_name(decision.result))
        self._answer_later((pending, encoded, counter, index), index)

    def _reply(self, pending: PendingOperation, result: wire.OperationResult, index: int) -> _Reply:
        """The answer that says `result`; an error has no index."""
        result.request_id = pending.operation.request_id
        counter = self._counter(pending.kind, _outcome_name(result))
        return pending, result.SerializeToString(), counter, 0 if result.HasField("error") else index

    def _answer_later(self, reply: _Reply, index: int) -> None:
        self._proposer.when_committed(index, self._answer, self._refuse, reply)

    def _answer_unchanged(self, pending: PendingOperation, result: wire.OperationResult) -> None:
        index = self._proposer.last_index
        decided = self._confirmed.term, self._reply(pending, result, index)
        self._proposer.when_committed(index, self._confirm, self._refuse_unconfirmed, decided)

    def _confirm(self, decided: tuple[int, _Reply]) -> None:
        term, reply = decided
        self._confirmed.add(term, partial(self._answer, reply), partial(self._refuse, reply))

    def _refuse_unconfirmed(self, decided: tuple[int, _Reply], error: OperationError) -> None:
        self._refuse(decided[1], error)

    def _refuse(self, reply: _Reply, error: OperationError) -> None:
        self.refuse(reply[0], error)

    def _answer(self, reply: _Reply) -> None:
        pending, encoded, counter, index = reply
        counter.add()
        if index != self._stamp[0]:
            self._stamp = (index, number_field(COMMIT_INDEX, index))
        pending.answer(encoded + self._stamp[1])

    def _counter(self, kind: str | None, outcome: str) -> Counter:
        counter = self._counters.get((kind, outcome))
        if counter is None:
            counter = self._counters[(kind, outcome)] = self._telemetry.counter(
                "ponor_controller_operations_total", operation=kind or "unknown", result=outcome
            )
        return counter


def _outcome_name(result: wire.OperationResult) -> str:
    outcome = result.WhichOneof("outcome")
    if outcome == "error":
        return error_name(result.error.code)
    if outcome == "compaction_outcome":  # a typed result is no error, and not always a success
        name = wire.CompactionOutcome.Result.Name(result.compaction_outcome.result)
        return name.removeprefix("RESULT_").lower()
    return "ok"
