"""A group as a shard holds it: the state machine, the offsets, and the record that the log has of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.member import Member
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.offsets import OffsetTable
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import NO_TIMESTAMP, GroupRecord


class Holding(NamedTuple):
    """What a group holds, for the broker's budget."""

    state: GroupState | None
    members: int
    offsets: int
    size_bytes: int


NO_HOLDING: Final = Holding(None, 0, 0, 0)


@dataclass(slots=True, eq=False)
class Group:
    """One group; `durable` is its newest record in the log, None when there is none."""

    group_id: str
    membership: Membership
    offsets: OffsetTable = field(default_factory=OffsetTable)
    durable: GroupRecord | None = None
    quiet_since_ms: int = NO_TIMESTAMP
    """When its newest record was made, durable or not: for an empty group, when it became empty."""
    counted: Holding = NO_HOLDING

    @property
    def holding(self) -> Holding:
        """What it holds now."""
        membership, offsets = self.membership, self.offsets
        size_bytes = membership.size_bytes + offsets.size_bytes
        return Holding(membership.state, len(membership), len(offsets), size_bytes)

    @property
    def is_simple(self) -> bool:
        """Has it never had members? Then consumers only keep their offsets under its name."""
        return not self.membership.protocol_type

    @property
    def is_unused(self) -> bool:
        """Nothing would be lost with it."""
        return self.membership.is_unused and self.offsets.is_unused


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A row of ListGroups."""

    group_id: str
    protocol_type: str
    state: GroupState


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """What DescribeGroups tells; without error code, everything but the id is empty for a group that does not exist."""

    error: ErrorCode
    state: GroupState = GroupState.DEAD
    protocol_type: str = ""
    protocol_name: str | None = None
    members: tuple[Member, ...] = ()
