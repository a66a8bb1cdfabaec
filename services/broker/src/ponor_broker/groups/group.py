"""One group of a shard: the state machine, the offsets, and the group's newest record in the log."""

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
    """Resources of a group, for the broker's budget."""

    state: GroupState | None
    members: int
    offsets: int
    size_bytes: int


NO_HOLDING: Final = Holding(None, 0, 0, 0)


@dataclass(slots=True, eq=False)
class Group:
    """One group; `durable` is its newest record in the log, None if there is none."""

    group_id: str
    membership: Membership
    offsets: OffsetTable = field(default_factory=OffsetTable)
    durable: GroupRecord | None = None
    quiet_since_ms: int = NO_TIMESTAMP
    """Time of the newest record, durable or in flight. For an empty group: when it became empty."""
    counted: Holding = NO_HOLDING

    @property
    def holding(self) -> Holding:
        """Current resources."""
        membership, offsets = self.membership, self.offsets
        size_bytes = membership.size_bytes + offsets.size_bytes
        return Holding(membership.state, len(membership), len(offsets), size_bytes)

    @property
    def is_simple(self) -> bool:
        """Whether the group never had members: clients only commit offsets under its id."""
        return not self.membership.protocol_type

    @property
    def is_unused(self) -> bool:
        """Whether the group contains neither members nor offsets."""
        return self.membership.is_unused and self.offsets.is_unused


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A row of ListGroups."""

    group_id: str
    protocol_type: str
    state: GroupState


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Content of DescribeGroups; the defaults describe a missing group."""

    error: ErrorCode
    state: GroupState = GroupState.DEAD
    protocol_type: str = ""
    protocol_name: str | None = None
    members: tuple[Member, ...] = ()
