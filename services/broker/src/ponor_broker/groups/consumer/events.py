"""The ConsumerGroupHeartbeat as an event, its answer, and the outcome of an event."""

from __future__ import annotations

from dataclasses import dataclass

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.consumer.assignment import Partitions
from ponor_broker.groups.consumer.member import ClassicPart
from ponor_broker.groups.consumer.records import ConsumerEntry
from ponor_broker.groups.outcome import GroupOutcome


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """A heartbeat of valid form. None stands for a field that did not change since the last heartbeat.

    Attributes:
        member_epoch: 0 to join, -1 to leave, -2 if a static member leaves for a short time.
        owned: the partitions that the member uses.
        classic: of a JoinGroup that is translated to a heartbeat; None for a heartbeat.
        is_named: False for a JoinGroup without a member id: `member_id` is then a new one.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int | None = None
    topics: frozenset[str] | None = None
    expression: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    classic: ClassicPart | None = None
    is_named: bool = True

    @property
    def is_full(self) -> bool:
        """Whether the member sent all fields, because it joins or did not get an answer."""
        has_subscription = self.topics is not None or self.expression is not None
        return self.member_epoch == 0 or (
            self.rebalance_timeout_ms is not None and has_subscription and self.owned is not None
        )


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The answer to a heartbeat or a translated JoinGroup; an error comes with a message. `assignment` is
    None if it did not change.
    """

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    assignment: Partitions | None = None


@dataclass(slots=True)
class Outcome(GroupOutcome[ConsumerEntry, HeartbeatAnswer]):
    """The outcome of an event of a consumer group."""

    has_assigned: bool = False
    """Whether the event computed a target."""
    is_downgrade: bool = False
    """Whether only classic members are left, and the group becomes a classic group."""
