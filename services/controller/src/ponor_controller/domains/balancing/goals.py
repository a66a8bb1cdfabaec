"""Balancing goals: which quantities should be even between brokers.

Each goal is a class that implements `Goal`. To add a goal, add a class and list it in `goals_of`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ponor_controller.domains.balancing.cluster_load import BrokerStanding, MovablePartition
from ponor_controller.settings import BalanceSettings


class Goal(Protocol):
    """A quantity that should be even between brokers."""

    @property
    def name(self) -> str:
        """Name in descriptions and metric labels."""
        ...

    @property
    def capacity(self) -> float:
        """Capacity of one broker in the goal's unit."""
        ...

    @property
    def unevenness_min(self) -> float:
        """Smallest distance from the mean, in the goal's unit, that counts as uneven."""
        ...

    @property
    def is_measured(self) -> bool:
        """Whether the amounts come from reports, which are uncertain after a move and in a new term."""
        ...

    def carried(self, broker: BrokerStanding) -> float:
        """Amount at a broker."""
        ...

    def weight(self, partition: MovablePartition) -> float:
        """Amount that moves with a partition."""
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
    """Number of partitions led, with or without traffic: each costs memory, and time at a failover."""

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
    """All goals, the most important first."""
    return (
        TrafficIn(settings.balance_capacity_in_bytes_per_s, settings.balance_in_bytes_per_s_min),
        TrafficOut(settings.balance_capacity_out_bytes_per_s, settings.balance_out_bytes_per_s_min),
        PartitionCount(settings.balance_capacity_partitions, settings.balance_partitions_min),
    )


class Band(NamedTuple):
    """The range of amounts that count as even."""

    low: float
    mean: float
    high: float

    def distance(self, amount: float) -> float:
        """Distance of an amount from the band; 0 inside."""
        return max(0.0, amount - self.high, self.low - amount)


def band_of(goal: Goal, amounts: Iterable[float], percent: float) -> Band:
    """The band of `percent` around the mean of the amounts, at least `unevenness_min` wide on both sides."""
    carried = tuple(amounts)
    mean = sum(carried) / len(carried)
    half = max(goal.unevenness_min, mean * percent / 100)
    return Band(mean - half, mean, mean + half)


def gain(band: Band, source: float, target: float, weight: float) -> float:
    """How much the distances of both brokers from the band decrease in total when `weight` moves; negative if
    they increase.

    Moves do not change the mean, so every move with a positive gain decreases the sum of all distances, and a
    greedy search terminates.
    """
    before = band.distance(source) + band.distance(target)
    return before - band.distance(source - weight) - band.distance(target + weight)


def share(goal: Goal, amount: float) -> float:
    """The amount as a share of the capacity."""
    return amount / goal.capacity


def _bytes_per_s(amount: float) -> str:
    for unit, size in (("MB/s", 1e6), ("kB/s", 1e3)):
        if amount >= size:
            return f"{amount / size:.1f} {unit}"
    return f"{amount:.0f} B/s"
