"""An operation that waits for execution: caller, content, and callback for the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_runtime.identity import NodeEpoch, NodeId


class Lane(IntEnum):
    """Classes of urgency, the most urgent first. Heartbeats and registrations bypass the lanes."""

    OPEN_CLOSE = 0
    COMMIT = 1
    COMPACTION = 2
    GC = 3


_LANE_OF_KIND: Final = {
    "open_streams": Lane.OPEN_CLOSE,
    "close_streams": Lane.OPEN_CLOSE,
    "elect_moved": Lane.OPEN_CLOSE,
    "cancel_moves": Lane.OPEN_CLOSE,
    "lease_compaction": Lane.COMPACTION,
    "renew_compaction": Lane.COMPACTION,
    "commit_compaction": Lane.COMPACTION,
    "end_compaction": Lane.COMPACTION,
    "claim_objects": Lane.GC,
    "confirm_deleted": Lane.GC,
}


@dataclass(frozen=True, slots=True)
class Caller:
    """A registered node process."""

    node_id: NodeId
    node_epoch: NodeEpoch
    role: records_pb2.NodeRole.ValueType


Answer: TypeAlias = Callable[[bytes], None]
"""Called with an `OperationResult` as it was encoded for the log. The bytes are copied into a frame
unchanged."""


class PendingOperation(NamedTuple):
    """An operation and the callback for its answer.

    Attributes:
        caller: the node process that sent it.
        operation: the operation itself.
        first_incomplete_id: from the operation's frame: the node has the answers to all operations with lower
            ids.
        answer: sends the result to the caller.
        kind: kind of the operation; None if this version does not support it.
    """

    caller: Caller
    operation: wire.Operation
    first_incomplete_id: int
    answer: Answer
    kind: str | None

    @property
    def lane(self) -> Lane:
        """The class of urgency."""
        return _LANE_OF_KIND.get(self.kind or "", Lane.COMMIT)
