"""What the planner looks at: who leads what and how much that is, as if every move under way were done.

What lives here: the values alone. They are drawn from image and reports in `drawing`, or by a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ponor_runtime.identity import NodeId

from ponor_controller.domains.balancing.loads import NO_TRAFFIC, PartitionKey, Traffic


class BrokerStanding(NamedTuple):
    """A live broker and what it carries."""

    node_id: NodeId
    partitions: int
    traffic: Traffic = NO_TRAFFIC
    cool_down_ms: int = 0
    """For so long its traffic is not judged."""
    cpu: float = 0.0
    """Share of one core; not moved by any goal."""
    reported_ms_ago: int = -1
    """-1: no report in this term."""


class MovablePartition(NamedTuple):
    """A partition that may move now: it does not, and did not lately."""

    key: PartitionKey
    topic: str
    """The topic's name."""
    source_id: NodeId
    traffic: Traffic = NO_TRAFFIC
    internal: bool = False
    """Of a topic that coordinators keep their state in: groups and transactions wait while it moves."""


@dataclass(frozen=True, slots=True)
class Picture:
    """See the module. `brokers` are those that take part, by node id; partitions are by key."""

    brokers: tuple[BrokerStanding, ...]
    movable: tuple[MovablePartition, ...] = ()
    """All with traffic, and of every broker as many of the others as may move at once. None when nothing is uneven."""
    moves_in_flight: int = 0
    """Of the balancer."""
    cooling: int = 0
    """Partitions with traffic that do not move because they did lately."""
    others: tuple[BrokerStanding, ...] = ()
    """Live brokers that take no part: they drain, or are still starting."""
    unknown: str = ""
    """Why traffic cannot be judged, in words; empty when it can."""
