"""One group of a shard: the state machine of its members, the offsets, and a classic group's newest record in
the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.consumer.membership import ConsumerMembership
from ponor_broker.groups.instructions import Timer
from ponor_broker.groups.member import Member
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.offsets import OffsetTable
from ponor_broker.groups.outcome import Contents, GroupOutcome, TimerInstruction
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.record_codec import Entry
from ponor_broker.groups.records import NO_TIMESTAMP, GroupRecord
from ponor_broker.groups.share.membership import ShareMembership
from ponor_broker.groups.streams.membership import StreamsMembership


class GroupMembership(Protocol):
    """The part of a membership that all types of group have."""

    @property
    def state(self) -> GroupState: ...

    @property
    def group_type(self) -> str:
        """Kafka's name for the type of group."""
        ...

    @property
    def protocol_type(self) -> str: ...

    @property
    def is_of_consumers(self) -> bool:
        """Whether subscriptions can be decoded."""
        ...

    @property
    def is_unused(self) -> bool:
        """Whether there are neither members nor assigned member ids."""
        ...

    @property
    def size_bytes(self) -> int: ...

    def __len__(self) -> int: ...

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the members' subscribed topics; None if they are unknown."""
        ...

    def delete(self) -> ErrorCode:
        """Mark the group as dead; only possible without members."""
        ...


class ServerAssignedMembership(GroupMembership, Protocol):
    """The part of a membership that all types of group have whose assignment the coordinator computes."""

    @property
    def contents(self) -> Contents[Any]:
        """The state, for reading only."""
        ...

    def entries(self) -> Iterator[Entry]:
        """Yield one record per key, with its value when the iteration reaches it, if it still exists."""
        ...

    def tombstones(self) -> Iterator[Entry]:
        """Yield the tombstones of all records."""
        ...

    def revive(self) -> None:
        """Undo `delete`, because the tombstones were not written."""
        ...

    def timer_fired(self, timer: Timer, now_ms: int) -> GroupOutcome[Any, Any]:
        """Handle a timer that was neither moved nor cancelled."""
        ...

    def take_back(self, outcome: GroupOutcome[Any, Any]) -> None:
        """Undo an event whose records the log refused, in the same turn of the event loop."""
        ...

    def restored(self) -> list[TimerInstruction]:
        """Return the timers after a load."""
        ...

    def unloaded(self) -> list[TimerInstruction]:
        """Return the timers to cancel, because another broker coordinates the group now."""
        ...


class Holding(NamedTuple):
    """Resources of a group, for the broker's budget."""

    kind: tuple[str, GroupState] | None
    """Type and state."""
    members: int
    offsets: int
    size_bytes: int


NO_HOLDING: Final = Holding(None, 0, 0, 0)


@dataclass(slots=True, eq=False)
class Group:
    """One group; `durable` is the newest record of a classic group in the log, None if there is none."""

    group_id: str
    membership: Membership | ServerAssignedMembership
    offsets: OffsetTable = field(default_factory=OffsetTable)
    durable: GroupRecord | None = None
    quiet_since_ms: int = NO_TIMESTAMP
    """Time of the newest record, durable or in flight. For an empty group: when it became empty."""
    counted: Holding = NO_HOLDING

    @property
    def classic(self) -> Membership | None:
        """The membership, if the group is a classic group."""
        return self.membership if isinstance(self.membership, Membership) else None

    @property
    def server_assigned(self) -> ServerAssignedMembership | None:
        """The membership, if the coordinator computes the group's assignment."""
        return None if isinstance(self.membership, Membership) else self.membership

    @property
    def consumer(self) -> ConsumerMembership | None:
        """The membership, if the group is a consumer group."""
        return self.membership if isinstance(self.membership, ConsumerMembership) else None

    @property
    def share(self) -> ShareMembership | None:
        """The membership, if the group is a share group."""
        return self.membership if isinstance(self.membership, ShareMembership) else None

    @property
    def streams(self) -> StreamsMembership | None:
        """The membership, if the group is a streams group."""
        return self.membership if isinstance(self.membership, StreamsMembership) else None

    @property
    def holding(self) -> Holding:
        """Current resources."""
        membership, offsets = self.membership, self.offsets
        size_bytes = membership.size_bytes + offsets.size_bytes
        kind = membership.group_type, membership.state
        return Holding(kind, len(membership), len(offsets), size_bytes)

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
    group_type: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """Content of DescribeGroups; the defaults describe a missing group."""

    error: ErrorCode
    state: GroupState = GroupState.DEAD
    protocol_type: str = ""
    protocol_name: str | None = None
    members: tuple[Member, ...] = ()
