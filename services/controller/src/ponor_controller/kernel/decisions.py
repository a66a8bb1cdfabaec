"""What a validator is given, and what it answers.

What lives here: the two values that pass between the proposer and every validator, and the checks that all of them share. No noun's rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.tables.schema import View
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId
from ponor_runtime.randomness import Randomness

from ponor_controller.domains.compaction.offer import Offers
from ponor_controller.kernel.operation import Caller
from ponor_controller.settings import ControllerSettings


@dataclass(frozen=True, slots=True)
class Situation:
    """Who asks, when, and what is so at that moment.

    `view` shows committed rows and above them those that proposed batches touch. `is_suspected` says whether a broker has been silent for too long:
    advice for placing new partitions, never a reason to take rights away. `compactions` knows what is worth compacting: advice too, checked against the view. `traceparent` is the operation's, empty for one that nobody traces.
    """

    caller: Caller
    now_ms: int
    view: View
    settings: ControllerSettings
    randomness: Randomness
    is_suspected: Callable[[NodeId], bool]
    compactions: Offers
    traceparent: str = ""


@dataclass(slots=True)
class Decision:
    """What happens: records (none: nothing changes) and the caller's answer, without request id and index.

    `parting` records end the caller's rights, and so stand behind its result.

    `divisible` records may be spread over several batches, in order, when one cannot hold them; a repeat of the request must then find and finish what a
    crash left.
    """

    records: list[records_pb2.Record] = field(default_factory=list)
    result: wire.OperationResult = field(default_factory=lambda: wire.OperationResult(done=wire.Done()))
    divisible: bool = False
    parting: list[records_pb2.Record] = field(default_factory=list)


def refuse(code: error_pb2.ErrorCode.ValueType, message: str) -> OperationError:
    """The error to raise; one line that names the thing and the remedy."""
    return OperationError(code, message)


def require_count(count: int, maximum: int, what: str) -> None:
    """Refuse an empty or oversized request.

    Raises:
        OperationError: INVALID_REQUEST.
    """
    if not 1 <= count <= maximum:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST, f"{count} {what} in one operation; send 1 to {maximum}"
        )


def require_distinct(ids: Sequence[int], what: str) -> None:
    """Refuse a request that names a thing twice.

    Raises:
        OperationError: INVALID_REQUEST.
    """
    if len(set(ids)) != len(ids):
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST, f"a {what} is named twice in one operation; name it once"
        )


def require_role(situation: Situation, role: records_pb2.NodeRole.ValueType) -> None:
    """Refuse operations that are not of the caller's kind.

    Raises:
        OperationError: INVALID_REQUEST.
    """
    caller = situation.caller
    if caller.role != role:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"node {caller.node_id} registered as {records_pb2.NodeRole.Name(caller.role)}; "
            f"this operation is for {records_pb2.NodeRole.Name(role)}",
        )
