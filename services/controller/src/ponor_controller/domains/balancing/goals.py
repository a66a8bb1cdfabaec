"""Balancing goals: which quantities should be even between brokers.

To add a goal, list it in `goals_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from ponor_controller.domains.balancing.cluster_load import BrokerStanding, MovablePartition
from ponor_controller.settings import BalanceSettings

_TRAFFIC_IN: Final = attrgetter("traffic.in_bytes_per_s")
_TRAFFIC_OUT: Final = attrgetter("traffic.out_bytes_per_s")
_PARTITIONS: Final = attrgetter("partitions")


@dataclass(frozen=True, slots=True)
class Goal:
    """A quantity that should be even between brokers.

    Attributes:
        name: name in descriptions and metric labels.
        capacity: capacity of one broker in the goal's unit.
        unevenness_min: smallest distance from the mean, in the goal's unit, that counts as uneven.
        is_measured: whether the amounts come from reports, which are uncertain after a move and in a
            new term.
        carried: returns the amount at a broker.
        weight: returns the amount that moves with a partition.
        shown: formats an amount with its unit.
    """

    name: str
    capacity: float
    unevenness_min: float
    is_measured: bool
    carried: Callable[[BrokerStanding], float]
    weight: Callable[[MovablePartition], float]
    shown: Callable[[float], str]


def goals_of(settings: BalanceSettings) -> tuple[Goal, ...]:
    """Return all goals, the most important first: bytes produced, bytes fetched, number of led partitions.

    Partitions count even without traffic, because each costs memory, and time at a failover.
    """
    return (
        Goal(
            "traffic-in",
            settings.balance_capacity_in_bytes_per_s,
            settings.balance_in_bytes_per_s_min,
            is_measured=True,
            carried=_TRAFFIC_IN,
            weight=_TRAFFIC_IN,
            shown=_bytes_per_s,
        ),
        Goal(
            "traffic-out",
            settings.balance_capacity_out_bytes_per_s,
            settings.balance_out_bytes_per_s_min,
            is_measured=True,
            carried=_TRAFFIC_OUT,
            weight=_TRAFFIC_OUT,
            shown=_bytes_per_s,
        ),
        Goal(
            "partitions",
            settings.balance_capacity_partitions,
            settings.balance_partitions_min,
            is_measured=False,
            carried=_PARTITIONS,
            weight=_one,
            shown=_count,
        ),
    )


def _one(_: MovablePartition) -> float:
    return 1.0


def _count(amount: float) -> str:
    return f"{amount:.0f}" if amount == round(amount) else f"{amount:.1f}"


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
