"""The StreamsGroupHeartbeat as an event, its answer, and the outcome of an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.outcome import GroupOutcome
from ponor_broker.groups.streams.assignment import Tasks
from ponor_broker.groups.streams.configured_topology import Status
from ponor_broker.groups.streams.member import Endpoint
from ponor_broker.groups.streams.records import StreamsEntry
from ponor_broker.groups.streams.topology import InternalTopic, Topology

LEAVING_EPOCH = -1


@dataclass(frozen=True, slots=True)
class StreamsHeartbeat:
    """A heartbeat of valid form. None stands for a field that did not change since the last heartbeat.

    Attributes:
        member_epoch: 0 to join, below 0 to leave.
        endpoint_epoch: the newest endpoint epoch that the member received.
        owned: the tasks that the member has.
        is_shutdown: whether the member requests the shutdown of all instances of the application.
    """

    member_id: str
    member_epoch: int
    endpoint_epoch: int = 0
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int | None = None
    topology: Topology | None = None
    owned: Tasks | None = None
    process_id: str | None = None
    endpoint: Endpoint | None = None
    tags: tuple[tuple[str, str], ...] | None = None
    is_shutdown: bool = False


@dataclass(frozen=True, slots=True)
class EndpointPartitions:
    """The partitions whose records an instance has in its state, by topic."""

    endpoint: Endpoint
    active: Mapping[str, list[int]]
    standby: Mapping[str, list[int]]


@dataclass(frozen=True, slots=True)
class StreamsAnswer:
    """The answer to a heartbeat; an error comes with a message.

    Attributes:
        tasks: None if they did not change.
        endpoints: None if they did not change since the member's endpoint epoch.
        missing: internal topics that must be created.
    """

    error: ErrorCode
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    statuses: tuple[Status, ...] = ()
    tasks: Tasks | None = None
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None
    missing: tuple[InternalTopic, ...] = ()


@dataclass(slots=True)
class Outcome(GroupOutcome[StreamsEntry, StreamsAnswer]):
    """The outcome of an event of a streams group."""

    has_taken_turn: bool = False
    """Whether the event began a pause between two computations of the target."""
    statuses: list[Status] = field(default_factory=list)
