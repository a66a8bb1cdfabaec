"""Send an answer when it is certainly correct: after the commit, or after a majority confirmed this leader.

An answer with records is correct when the records are committed. An answer without records (a
refusal, a repeat, or a claim that found no garbage) is based on this controller's image only. A
leader that was suspended while another one was elected still has an old image (etcd-io/etcd #20418).
The controller therefore sends an answer without records only after a round of heartbeats that began
after the decision. This round confirms that the controller leads the same term.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.operations import operation_attributes
from ponor_raft.errors import NotLeaderError
from ponor_rpc.errors import OperationError, error_name
from ponor_rpc.joined_messages import number_field
from ponor_runtime.telemetry import Counter, Telemetry
from ponor_runtime.tracing import SpanKind, TraceContext

from ponor_controller.consensus.ports import Consensus
from ponor_controller.kernel.commit_waiters import CommitWaiters
from ponor_controller.kernel.operation import PendingOperation

COMMIT_INDEX: Final = wire.OperationResult.COMMIT_INDEX_FIELD_NUMBER

_Answer: TypeAlias = tuple[PendingOperation, bytes, Counter, int]
"""The operation, the encoded result as stored in the log, the counter of this outcome, and the commit index
that is appended to the result (0: nothing is appended)."""


class Answers:
    """Answers that wait for a commit. The limit of operations in flight bounds their number."""

    def __init__(self, commits: CommitWaiters, confirmed: ConfirmedAnswers, telemetry: Telemetry) -> None:
        self._commits = commits
        self._confirmed = confirmed
        self._telemetry = telemetry
        self._counters: dict[tuple[str | None, str], Counter] = {}
        self._stamp = (0, b"")
        """A commit index and its encoded field, shared by all answers of one batch."""

    def after_commit(
        self, pending: PendingOperation, result: wire.OperationResult, encoded: bytes, index: int
    ) -> None:
        """Answer with `encoded`, the serialized `result`, when `index` is committed."""
        answer = pending, encoded, self._counter(pending.kind, result), index
        self._commits.when_reached(index, self._send, self._refuse, answer)

    def after_confirmation(self, pending: PendingOperation, result: wire.OperationResult, index: int) -> None:
        """Answer when `index` is committed and a majority confirmed this leader."""
        unconfirmed = self._confirmed.term, self._encode(pending, result, index)
        self._commits.when_reached(index, self._confirm, self._refuse_unconfirmed, unconfirmed)

    def refuse(self, pending: PendingOperation, error: OperationError) -> None:
        """Answer at once with an error that makes the node send the operation to the leader."""
        self._send(self._encode(pending, wire.OperationResult(error=error.to_proto()), 0))

    def _encode(self, pending: PendingOperation, result: wire.OperationResult, index: int) -> _Answer:
        result.request_id = pending.operation.request_id
        shown_index = 0 if result.HasField("error") else index
        return pending, result.SerializeToString(), self._counter(pending.kind, result), shown_index

    def _confirm(self, unconfirmed: tuple[int, _Answer]) -> None:
        term, answer = unconfirmed
        self._confirmed.add(term, partial(self._send, answer), partial(self._refuse, answer))

    def _refuse_unconfirmed(self, unconfirmed: tuple[int, _Answer], error: OperationError) -> None:
        self._refuse(unconfirmed[1], error)

    def _refuse(self, answer: _Answer, error: OperationError) -> None:
        self.refuse(answer[0], error)

    def _send(self, answer: _Answer) -> None:
        pending, encoded, counter, index = answer
        counter.add()
        if index != self._stamp[0]:
            self._stamp = (index, number_field(COMMIT_INDEX, index))
        pending.answer(encoded + self._stamp[1])

    def _counter(self, kind: str | None, result: wire.OperationResult) -> Counter:
        outcome = _outcome_name(result)
        counter = self._counters.get((kind, outcome))
        if counter is None:
            counter = self._counters[(kind, outcome)] = self._telemetry.counter(
                "ponor_controller_operations_total", operation=kind or "unknown", result=outcome
            )
        return counter


class ConfirmedAnswers:
    """Answers that wait until leadership is confirmed. The limit of operations in flight bounds them."""

    def __init__(self, consensus: Consensus) -> None:
        self._consensus = consensus
        self._waiting: list[tuple[int, Callable[[], None], Callable[[OperationError], None]]] = []
        self._added = asyncio.Event()

    @property
    def term(self) -> int:
        """The present term."""
        return self._consensus.term

    def add(self, term: int, answer: Callable[[], None], refuse: Callable[[OperationError], None]) -> None:
        """Call `answer` when a majority confirms the leadership in `term`. Otherwise call `refuse` with
        NOT_LEADER.

        Args:
            term: the term of the decision.
            answer: sends the answer.
            refuse: sends the error.
        """
        self._waiting.append((term, answer, refuse))
        self._added.set()

    async def run(self) -> None:
        """Confirm answers until cancelled."""
        while True:
            await self._added.wait()
            await self.confirm()

    async def confirm(self) -> None:
        """Confirm leadership once for all waiting answers. An answer added in the meantime waits for the next
        call.
        """
        self._added.clear()
        waiting, self._waiting = self._waiting, []
        try:
            await self._consensus.read_index()
            leads = self._consensus.leading
        except NotLeaderError:
            leads = False
        for term, answer, refuse in waiting:
            if leads and term == self._consensus.term:
                answer()
            else:
                refuse(self._not_leader())

    def _not_leader(self) -> OperationError:
        return OperationError(
            error_pb2.ERROR_CODE_NOT_LEADER,
            "this controller stopped leading before the answer was confirmed; try again",
            leader_address=self._consensus.leader_address() or "",
        )


def _outcome_name(result: wire.OperationResult) -> str:
    outcome = result.WhichOneof("outcome")
    if outcome == "error":
        return error_name(result.error.code)
    if outcome == "compaction_outcome":  # a typed result is not an error, but not always a success
        name = wire.CompactionOutcome.Result.Name(result.compaction_outcome.result)
        return name.removeprefix("RESULT_").lower()
    return "ok"


def traced(pending: PendingOperation, telemetry: Telemetry) -> PendingOperation:
    """Trace the operation if the node and this process both trace: its answer callback then ends a span."""
    parent = TraceContext.parse(pending.operation.traceparent)
    if telemetry.tracing is None or parent is None:
        return pending
    attributes = {
        **operation_attributes(pending.operation),
        "ponor.node.id": pending.caller.node_id,
        "ponor.node.epoch": pending.caller.node_epoch,
    }
    span = telemetry.tracing.begin(
        "ponor.controller.operation", attributes, kind=SpanKind.SERVER, parent=parent
    )
    if span is None:
        return pending

    def answer(encoded: bytes) -> None:
        result = wire.OperationResult.FromString(encoded)
        refused = result.WhichOneof("outcome") == "error"
        span.set({"ponor.commit_index": result.commit_index})
        span.end(error=error_name(result.error.code) if refused else None)
        pending.answer(encoded)

    return pending._replace(answer=answer)
