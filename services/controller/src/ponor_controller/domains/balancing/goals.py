"""Goals: what is to be even between brokers.

What lives here: one class a goal, behind a protocol, and the arithmetic of being even that all of them share. Which partition moves is the planner's
business; a goal knows nothing of moves under way, cool-downs or other goals. Another goal (connections, say) is another class in `goals_of`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ponor_controller.domains.balancing.picture import BrokerStanding, MovablePartition
from ponor_controller.settings import BalanceSettings


class Goal(Protocol):
    """One thing that is to be even."""

    @property
    def name(self) -> str:
        """For people and as a label."""
        ...

    @property
    def capacity(self) -> float:
        """What one broker can carry, in the goal's unit; its share is what it carries divided by this."""
        ...

    @property
    def unevenness_min(self) -> float:
        """Distance from the mean, in the goal's unit, below which nothing is uneven."""
        ...

    @property
    def is_measured(self) -> bool:
        """Whether amounts come from reports, so that they are unsure after a move and in a new term."""
        ...

    def carried(self, broker: BrokerStanding) -> float:
        """What a broker carries."""
        ...

    def weight(self, partition: MovablePartition) -> float:
        """How much of it goes with a partition."""
        ...

    def shown(self, amount: float) -> str:
        """An amount with its unit."""
        ...


@dataclass(frozen=True, slots=True)
class TrafficIn:
    """Bytes produced."""

    capacity: float
    unevenness_min: float
    name: str = "traffic-in"
    is_measured: bool = True

    def carried(self, broker: BrokerStanding) -> float:
        return broker.traffic.in_bytes_per_s

    def weight(self, partition: MovablePartition) -> float:
        return partition.traffic.in_bytes_per_s

    def shown(self, amount: float) -> str:
        return _bytes_per_s(amount)


@dataclass(frozen=True, slots=True)
class TrafficOut:
    """Bytes fetched."""

    capacity: float
    unevenness_min: float
    name: str = "traffic-out"
    is_measured: bool = True

    def carried(self, broker: BrokerStanding) -> float:
        return broker.traffic.out_bytes_per_s

    def weight(self, partition: MovablePartition) -> float:
        return partition.traffic.out_bytes_per_s

    def shown(self, amount: float) -> str:
        return _bytes_per_s(amount)


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """Partitions led, busy or not: each costs memory, and time when its broker dies."""

    capacity: float
    unevenness_min: float
    name: str = "partitions"
    is_measured: bool = False

    def carried(self, broker: BrokerStanding) -> float:
        return float(broker.partitions)

    def weight(self, partition: MovablePartition) -> float:  # noqa: ARG002 - each counts one
        return 1.0

    def shown(self, amount: float) -> str:
        return f"{amount:.0f}" if amount == round(amount) else f"{amount:.1f}"


def goals_of(settings: BalanceSettings) -> tuple[Goal, ...]:
    """All goals, the more important first."""
    return (
        TrafficIn(settings.balance_capacity_in_bytes_per_s, settings.balance_in_bytes_per_s_min),
        TrafficOut(settings.balance_capacity_out_bytes_per_s, settings.balance_out_bytes_per_s_min),
        PartitionCount(settings.balance_capacity_partitions, settings.balance_partitions_min),
    )


class Band(NamedTuple):
    """Amounts that count as even."""

    low: float
    mean: float
    high: float

    def distance(self, amount: float) -> float:
        """How far outside; 0 inside."""
        return max(0.0, amount - self.high, self.low - amount)


def band_of(goal: Goal, amounts: Iterable[float], percent: float) -> Band:
    """The band around the mean of what brokers carry."""
    carried = tuple(amounts)
    mean = sum(carried) / len(carried)
    half = max(goal.unevenness_min, mean * percent / 100)
    return Band(mean - half, mean, mean + half)


def gain(band: Band, source: float, target: float, weight: float) -> float:
    """How much nearer to the band two brokers are, taken together, when so much goes from one to the other; negative when they are further away.

    For a fixed mean this is what makes the sum of all distances fall: the proof that a goal alone, followed greedily, comes to an end.
    """
    before = band.distance(source) + band.distance(target)
    return before - band.distance(source - weight) - band.distance(target + weight)


def share(goal: Goal, amount: float) -> float:
    """Part of what a broker can carry."""
    return amount / goal.capacity


def _bytes_per_s(amount: float) -> str:
    for unit, size in (("MB/s", 1e6), ("kB/s", 1e3)):
        if amount >= size:
            return f"{amount / size:.1f} {unit}"
    return f"{amount:.0f} B/s"
