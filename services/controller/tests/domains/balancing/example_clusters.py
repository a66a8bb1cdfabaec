"""Example clusters for the planner, and the effect of its plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ponor_controller.domains.balancing.cluster_load import BrokerStanding, ClusterLoad, MovablePartition
from ponor_controller.domains.balancing.goals import Goal, band_of, goals_of
from ponor_controller.domains.balancing.loads import NO_TRAFFIC, PartitionKey, Traffic
from ponor_controller.domains.balancing.planner import Limits, Plan, plan
from ponor_controller.settings import BalanceSettings
from ponor_runtime.identity import NodeId

MB = 1e6
SETTINGS = BalanceSettings()
GOALS = goals_of(SETTINGS)
LIMITS = Limits(SETTINGS.balance_threshold_percent, SETTINGS.balance_moves_in_flight_max)


def key(number: int) -> PartitionKey:
    return (number.to_bytes(16, "big"), number)


@dataclass
class Cluster:
    """Partitions on brokers. Plans take effect immediately."""

    brokers: list[int]
    at: dict[int, int] = field(default_factory=dict)
    """Broker of each partition."""
    traffic: dict[int, Traffic] = field(default_factory=dict)
    internal: set[int] = field(default_factory=set)
    cooling: set[int] = field(default_factory=set)
    cool_brokers: dict[int, int] = field(default_factory=dict)
    moves: list[tuple[int, int, int]] = field(default_factory=list)
    """Executed moves: partition, from, to."""

    def add(self, broker: int, count: int, traffic: Traffic = NO_TRAFFIC, *, internal: bool = False) -> None:
        for _ in range(count):
            number = len(self.at)
            self.at[number] = broker
            self.traffic[number] = traffic
            if internal:
                self.internal.add(number)

    def cluster_load(self, noise: Mapping[int, float] | None = None) -> ClusterLoad:
        seen = {
            number: traffic if noise is None else Traffic(*(rate * noise[number] for rate in traffic))
            for number, traffic in self.traffic.items()
        }
        brokers = tuple(
            BrokerStanding(
                NodeId(broker),
                sum(at == broker for at in self.at.values()),
                _sum(seen[number] for number, at in self.at.items() if at == broker),
                cool_down_ms=self.cool_brokers.get(broker, 0),
            )
            for broker in self.brokers
        )
        movable = tuple(
            MovablePartition(key(number), f"t{number}", NodeId(at), seen[number], number in self.internal)
            for number, at in self.at.items()
            if at in self.brokers and number not in self.cooling
        )
        return ClusterLoad(brokers, movable, cooling=len(self.cooling))

    def plan(self, noise: Mapping[int, float] | None = None, limits: Limits = LIMITS) -> Plan:
        return plan(self.cluster_load(noise), GOALS, limits)

    def carry_out(self, planned: Plan) -> None:
        for move in planned.moves:
            number = move.partition.key[1]
            assert self.at[number] == move.partition.source_id
            assert move.target_id in self.brokers
            assert number not in self.cooling
            self.moves.append((number, self.at[number], int(move.target_id)))
            self.at[number] = int(move.target_id)

    def rest(self, rounds_max: int = 100) -> int:
        """Execute plans until there is none; return their number."""
        for round_number in range(rounds_max):
            planned = self.plan()
            if not planned.moves:
                return round_number
            self.carry_out(planned)
        raise AssertionError(f"still moving after {rounds_max} plans")

    def shares(self, goal: str) -> list[float]:
        picked = next(each for each in GOALS if each.name == goal)
        return [picked.carried(broker) for broker in self.cluster_load().brokers]


def distances(cluster_load: ClusterLoad, goals: Sequence[Goal] = GOALS, percent: float = 10.0) -> list[float]:
    """For each goal, the total distance of all brokers from the inner band."""
    result = []
    for goal in goals:
        amounts = [goal.carried(broker) for broker in cluster_load.brokers]
        band = band_of(goal, amounts, percent)
        result.append(sum(band.distance(amount) for amount in amounts))
    return result


def worst(cluster_load: ClusterLoad, percent: float = 10.0) -> float:
    """The largest distance of a broker from a band, relative to the goal's mean (or its smallest
    unevenness).
    """
    found = 0.0
    for goal in GOALS:
        amounts = [goal.carried(broker) for broker in cluster_load.brokers]
        band = band_of(goal, amounts, percent)
        scale = max(band.mean, goal.unevenness_min)
        found = max(found, *(band.distance(amount) / scale for amount in amounts))
    return found


def in_flight(cluster_load: ClusterLoad, moves: int) -> ClusterLoad:
    return replace(cluster_load, moves_in_flight=moves)


def _sum(parts: object) -> Traffic:
    total = NO_TRAFFIC
    for part in parts:  # type: ignore[attr-defined]
        total = total.plus(part)
    return total
