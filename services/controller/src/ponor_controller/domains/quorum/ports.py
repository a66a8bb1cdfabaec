"""What the quorum service asks of the driver of the log, in an operator's terms."""

from __future__ import annotations

from typing import Protocol

from ponor.controller.v1 import quorum_service_pb2 as wire

from ponor_controller.consensus.members import Member


class QuorumControl(Protocol):
    """Changes of the quorum, made by the leader. Each is idempotent: what is so already is done.

    Raises (all that are coroutines): `OperationError`, NOT_LEADER when this controller does not lead (any more), OVERLOADED when another change is under way or
    the group is not ready for one yet (try again), INVALID_REQUEST when the change makes no sense.
    """

    def describe(self) -> wire.QuorumDescription:
        """What this controller knows, but for the features."""
        ...

    async def confirm_leadership(self) -> int:
        """An index at or above everything committed before the call; a majority confirmed this controller as leader after it."""
        ...

    async def add_learner(self, learner: Member) -> int:
        """Let a blank replica follow; returns the index of the change once it is committed."""
        ...

    async def promote(self, node_id: int) -> int:
        """Let a learner that has caught up vote; returns the index of the change once it is committed."""
        ...

    async def remove(self, node_id: int, directory_id: bytes) -> int:
        """Take a member out (any directory when `directory_id` is empty); returns the index of the change once it is committed."""
        ...

    async def transfer(self, node_id: int) -> int:
        """Let another voter lead (0: the furthest); returns once it does, with the last index of the own term."""
        ...

    async def take_snapshot(self) -> int:
        """Write a snapshot; returns its index once it is durable."""
        ...
