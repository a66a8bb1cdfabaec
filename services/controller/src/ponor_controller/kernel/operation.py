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
    """A node process, as the controller registered it."""

    node_id: NodeId
    node_epoch: NodeEpoch
    role: records_pb2.NodeRole.ValueType


Answer: TypeAlias = Callable[[bytes], None]
"""Takes an encoded `OperationResult`: it was encoded for the log, and goes into a frame as it is."""


class PendingOperation(NamedTuple):
    """One operation and the way back. `first_incomplete_id` came with the frame it was in; `kind` is the operation's, None for one that is not known here."""

    caller: Caller
    operation: wire.Operation
    first_incomplete_id: int
    answer: Answer
    kind: str | None

    @property
    def lane(self) -> Lane:
        """How urgent it is."""
        return _LANE_OF_KIND.get(self.kind or "", Lane.COMMIT)
