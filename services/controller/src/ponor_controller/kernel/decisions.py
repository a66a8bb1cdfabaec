"""Input and output of validators, and checks that several validators share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.tables.schema import View
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId
from ponor_runtime.randomness import Randomness

from ponor_controller.kernel.operation import Caller
from ponor_controller.settings import ControllerSettings


@dataclass(frozen=True, slots=True)
class Situation:
    """What a validator reads, besides the operation.

    Attributes:
        caller: the node process that sent the operation.
        now_ms: cluster time.
        view: committed rows, with the changes of proposed batches applied on top.
        settings: the controller's settings.
        randomness: source of new ids.
        is_suspected: whether a node is suspected. Suspicion only influences where partitions are placed.
        traceparent: the operation's trace context; empty without a trace.
    """

    caller: Caller
    now_ms: int
    view: View
    settings: ControllerSettings
    randomness: Randomness
    is_suspected: Callable[[NodeId], bool]
    traceparent: str = ""


@dataclass(slots=True)
class Decision:
    """The output of a validator.

    Attributes:
        records: the changes; none if nothing changes.
        result: the answer to the caller, without request id and commit index.
        divisible: whether the records may be spread over several batches, in order. If a crash happens
            between two batches, a repetition of the request must complete the change.
        closing_records: records that end the caller's rights. They are placed after the record of the
            operation's result. Placed before it, they would fence the caller before its result is recorded,
            and it would get no answer.
        rows: number of rows that the records change; needed only if larger than the number of records.
    """

    records: list[records_pb2.Record] = field(default_factory=list)
    result: wire.OperationResult = field(default_factory=lambda: wire.OperationResult(done=wire.Done()))
    divisible: bool = False
    closing_records: list[records_pb2.Record] = field(default_factory=list)
    rows: int = 0


Validate: TypeAlias = Callable[[wire.Operation, Situation, str | None], Decision]
"""Decides on an operation; raises OperationError to refuse it. The third argument is the kind of the
operation; None if it is unknown.
"""


def refuse(code: error_pb2.ErrorCode.ValueType, message: str) -> OperationError:
    """An error to raise. The message is one line that names the object and the remedy."""
    return OperationError(code, message)


def invalid(message: str) -> OperationError:
    """An INVALID_REQUEST error to raise; see `refuse`."""
    return OperationError(error_pb2.ERROR_CODE_INVALID_REQUEST, message)


def require_count(count: int, maximum: int, what: str) -> None:
    """Refuse an empty or oversized request.

    Raises:
        OperationError: INVALID_REQUEST.
    """
    if not 1 <= count <= maximum:
        raise invalid(f"the operation has {count} {what}; send 1 to {maximum}")


def require_distinct(ids: Sequence[int | str], what: str) -> None:
    """Refuse a request that contains an id twice.

    Raises:
        OperationError: INVALID_REQUEST.
    """
    if len(set(ids)) != len(ids):
        raise invalid(f"the operation names a {what} twice; name it once")


def require_role(situation: Situation, role: records_pb2.NodeRole.ValueType) -> None:
    """Refuse an operation that is reserved for another role.

    Raises:
        OperationError: INVALID_REQUEST.
    """
    caller = situation.caller
    if caller.role != role:
        raise invalid(
            f"node {caller.node_id} registered as {records_pb2.NodeRole.Name(caller.role)}; "
            f"only {records_pb2.NodeRole.Name(role)} may send this operation"
        )
