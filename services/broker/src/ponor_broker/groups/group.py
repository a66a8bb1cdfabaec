"""A group as a shard holds it: the state machine, the offsets, and the record that the log has of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.member import Member
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.offsets import OffsetTable
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import NO_TIMESTAMP, GroupRecord


@dataclass(slots=True, eq=False)
class Group:
    """One group; `durable` is its newest record in the log, None when there is none."""

    group_id: str
    membership: Membership
    offsets: OffsetTable = field(default_factory=OffsetTable)
    durable: GroupRecord | None = None
    counted_as: GroupState | None = None

    @property
    def quiet_since_ms(self) -> int:
        """When its last record was written: for an empty group, when it became empty."""
        return NO_TIMESTAMP if self.durable is None else self.durable.state_timestamp_ms

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
