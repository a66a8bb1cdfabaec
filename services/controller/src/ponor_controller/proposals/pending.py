"""An operation on its way: who asked, what, and whom to answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_runtime.identity import NodeEpoch, NodeId


class Lane(IntEnum):
    """Classes of urgency, the most urgent first. Heartbeats and registrations never wait in a lane."""

    OPEN_CLOSE = 0
    COMMIT = 1
    GC = 2


_LANE_OF_KIND: Final = {
    "open_streams": Lane.OPEN_CLOSE,
    "close_streams": Lane.OPEN_CLOSE,
    "claim_objects": Lane.GC,
    "confirm_deleted": Lane.GC,
}


@dataclass(frozen=True, slots=True)
class Caller:
    """A node process, as the controller registered it."""

    node_id: NodeId
    node_epoch: NodeEpoch
    role: records_pb2.NodeRole.ValueType


Answer: TypeAlias = Callable[[wire.OperationResult], None]


class PendingOperation(NamedTuple):
    """One operation and the way back. `first_incomplete_id` came with the frame it was in."""

    caller: Caller
    operation: wire.Operation
    first_incomplete_id: int
    answer: Answer

    @property
    def lane(self) -> Lane:
        """How urgent it is."""
        return _LANE_OF_KIND.get(self.operation.WhichOneof("kind") or "", Lane.COMMIT)
