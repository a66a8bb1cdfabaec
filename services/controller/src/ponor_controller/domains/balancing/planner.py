"""Plan which partitions move next.

The planner is a greedy search. It does no I/O and keeps no state: the same input gives the same plan. It
handles the goals in their order of importance. Every move, or swap of two partitions, brings at least one
broker nearer to the band of its goal (`goals.gain`) and pushes no broker further out of the band of any other
goal. The sum of all distances therefore falls with every move: under constant loads the planner terminates,
and no goal undoes the moves of another goal. Three rules prevent moves that only follow noise: a goal begins
moves at a larger unevenness than the one at which it stops, a move must achieve a minimum share of its
possible gain, and a moved partition cools down.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ponor_runtime.identity import NodeId

from ponor_controller.domains.balancing.candidates import Candidates
from ponor_controller.domains.balancing.cluster_load import ClusterLoad, MovablePartition
from ponor_controller.domains.balancing.goals import Band, Goal, band_of, gain
from ponor_controller.domains.balancing.loads import PartitionKey

PAIRED_BROKERS_MAX: Final = 8
"""Number of the most loaded brokers tried as sources, and of the least loaded tried as targets."""
SWAPPING_BROKERS_MAX: Final = 3
"""The same for swaps, which are tried if no single move helps."""
GAIN_SHARE_MIN: Final = 0.5
"""Minimum gain of a move as a share of its weight. With a smaller gain, noise would soon cause the opposite
move."""
STOP_SHARE: Final = 0.5
"""A goal stops moves at this share of the unevenness at which it begins them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The threshold of unevenness, and the bound of moves in progress."""

    threshold_percent: float
    moves_in_flight_max: int


class PlannedMove(NamedTuple):
    """A partition, its target, and the reason in one line of at most 256 characters."""

    partition: MovablePartition
    target_id: NodeId
    goal: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves in the order of the search, and the reasons why loads remain uneven (empty if they do not)."""

    moves: tuple[PlannedMove, ...] = ()
    holding_back: str = ""


def plan(cluster_load: ClusterLoad, goals: Sequence[Goal], limits: Limits) -> Plan:
    """Plan the next moves."""
    if len(cluster_load.brokers) < 2:
        return Plan()
    search = _Search(cluster_load, goals, limits)
    for goal in goals:
        search.follow(goal)
    return Plan(tuple(search.moves), "; ".join(search.obstacles))


def is_uneven(goal: Goal, amounts: Collection[float], percent: float) -> bool:
    """Whether the amount of a broker is outside the band of `percent` around the mean."""
    band = band_of(goal, amounts, percent)
    return any(band.distance(amount) > 0 for amount in amounts)


class _Change(NamedTuple):
    """A partition that moves, and in a swap the one that moves back. The change with the smallest `order` is
    best.
    """

    order: tuple[float, float, float, PartitionKey]
    source_id: NodeId
    target_id: NodeId
    leaving: MovablePartition
    returning: MovablePartition | None = None

    def net(self, goal: Goal) -> float:
        """Amount by which the load of the target rises and that of the source falls."""
        return goal.weight(self.leaving) - (0.0 if self.returning is None else goal.weight(self.returning))


class _Search:
    """The search: the loads of the cluster after the moves that were selected so far."""

    def __init__(self, cluster_load: ClusterLoad, goals: Sequence[Goal], limits: Limits) -> None:
        self._cluster_load = cluster_load
        self._goals = goals
        self._limits = limits
        self._amounts = {
            goal.name: {broker.node_id: goal.carried(broker) for broker in cluster_load.brokers}
            for goal in goals
        }
        content = limits.threshold_percent * STOP_SHARE
        self._bands = {goal.name: band_of(goal, self._amounts[goal.name].values(), content) for goal in goals}
        self._cooling = {broker.node_id for broker in cluster_load.brokers if broker.cool_down_ms > 0}
        self._moved: set[PartitionKey] = set()
        self.moves: list[PlannedMove] = []
        self.obstacles: list[str] = []

    def follow(self, goal: Goal) -> None:
        """Select moves until the goal is reached. If it cannot be reached, record the reason."""
        if not self._is_uneven(goal):
            return
        if self._cluster_load.unknown:
            self._hold_back(goal, self._cluster_load.unknown)
            return
        candidates = Candidates(goal, self._cluster_load.movable)
        while True:
            if self._room == 0:
                self._hold_back(
                    goal, f"the maximum of {self._limits.moves_in_flight_max} moves is in progress"
                )
                return
            best = self._best(goal, candidates)
            if best is None:
                break
            self._apply(goal, best)
        if self._is_uneven(goal):
            self._hold_back(goal, self._why_none(goal))

    def _is_uneven(self, goal: Goal) -> bool:
        return is_uneven(goal, self._amounts[goal.name].values(), self._limits.threshold_percent)

    @property
    def _room(self) -> int:
        """Number of moves that may still begin."""
        under_way = self._cluster_load.moves_in_flight + len(self.moves)
        return max(0, self._limits.moves_in_flight_max - under_way)

    def _best(self, goal: Goal, candidates: Candidates) -> _Change | None:
        for internal in (False, True):  # internal partitions move only if no other move helps
            for source_id, target_id in self._pairs(goal, PAIRED_BROKERS_MAX):
                moves = self._moves(goal, candidates, source_id, target_id, internal=internal)
                best = self._best_of(goal, moves)
                if best is not None:
                    return best
            for source_id, target_id in self._pairs(goal, SWAPPING_BROKERS_MAX if self._room > 1 else 0):
                best = self._best_of(goal, self._swaps(goal, candidates, source_id, target_id))
                if best is not None:
                    return best
        return None

    def _best_of(self, goal: Goal, changes: Iterator[_Change]) -> _Change | None:
        harmless = (change for change in changes if not self._harms_others(goal, change))
        return min(harmless, key=lambda change: change.order, default=None)

    def _pairs(self, goal: Goal, brokers_max: int) -> Iterator[tuple[NodeId, NodeId]]:
        """Pairs of source and target brokers for moves, the most uneven pair first."""
        amounts, band = self._amounts[goal.name], self._bands[goal.name]
        judged = [each for each in amounts if not (goal.is_measured and each in self._cooling)]
        fullest = sorted(judged, key=lambda node_id: (-amounts[node_id], node_id))[:brokers_max]
        emptiest = sorted(judged, key=lambda node_id: (amounts[node_id], node_id))[:brokers_max]
        for source_id in fullest:
            for target_id in emptiest:
                outside = band.distance(amounts[source_id]) + band.distance(amounts[target_id])
                if amounts[source_id] > band.mean > amounts[target_id] and outside > 0:
                    yield source_id, target_id

    def _moves(
        self, goal: Goal, candidates: Candidates, source_id: NodeId, target_id: NodeId, *, internal: bool
    ) -> Iterator[_Change]:
        """Single moves between two brokers with sufficient gain."""
        for partition in candidates.near(
            source_id, self._wanted(goal, source_id, target_id), internal=internal, without=self._moved
        ):
            weight = goal.weight(partition)
            gained = self._gain(goal, source_id, target_id, weight)
            if gained >= GAIN_SHARE_MIN * weight:
                idle_first = 0.0 if goal.is_measured else max(partition.traffic)
                order = (-gained, weight, idle_first, partition.key)
                yield _Change(order, source_id, target_id, partition)

    def _swaps(
        self, goal: Goal, candidates: Candidates, source_id: NodeId, target_id: NodeId
    ) -> Iterator[_Change]:
        """Swaps between two brokers, for cases in which a single move would harm another goal."""
        wanted = self._wanted(goal, source_id, target_id)
        for leaving in candidates.near(source_id, wanted, internal=False, without=self._moved):
            for returning in candidates.lightest(target_id, without=self._moved):
                there, back = goal.weight(leaving), goal.weight(returning)
                gained = self._gain(goal, source_id, target_id, there - back)
                if there > back and gained >= GAIN_SHARE_MIN * (there + back):
                    order = (-gained, there + back, 0.0, leaving.key)
                    yield _Change(order, source_id, target_id, leaving, returning)

    def _wanted(self, goal: Goal, source_id: NodeId, target_id: NodeId) -> float:
        """The weight that brings that one of the two brokers to the mean that is nearer to it."""
        amounts, mean = self._amounts[goal.name], self._bands[goal.name].mean
        return min(amounts[source_id] - mean, mean - amounts[target_id])

    def _gain(self, goal: Goal, source_id: NodeId, target_id: NodeId, weight: float) -> float:
        amounts = self._amounts[goal.name]
        return gain(self._bands[goal.name], amounts[source_id], amounts[target_id], weight)

    def _harms_others(self, goal: Goal, change: _Change) -> bool:
        for other in self._goals:
            amounts, band = self._amounts[other.name], self._bands[other.name]
            source, target = amounts[change.source_id], amounts[change.target_id]
            if other is not goal and _harms(band, source, target, change.net(other)):
                return True
        return False

    def _apply(self, goal: Goal, change: _Change) -> None:
        reason = self._reason(goal, change)
        for each in self._goals:
            amounts, net = self._amounts[each.name], change.net(each)
            amounts[change.source_id] -= net
            amounts[change.target_id] += net
        self._moved.add(change.leaving.key)
        self.moves.append(PlannedMove(change.leaving, change.target_id, goal.name, reason))
        if change.returning is not None:
            self._moved.add(change.returning.key)
            back = f"in return, so that no other measure becomes uneven: {reason}"
            self.moves.append(PlannedMove(change.returning, change.source_id, goal.name, back))

    def _reason(self, goal: Goal, change: _Change) -> str:
        amounts, mean = self._amounts[goal.name], self._bands[goal.name].mean
        source, target, net = amounts[change.source_id], amounts[change.target_id], change.net(goal)
        percent = 100 * (source - mean) / mean if mean else 0.0
        return (
            f"{goal.name}: broker {change.source_id} has {goal.shown(source)} ({percent:+.0f} % from the mean"
            f" {goal.shown(mean)}), broker {change.target_id} has {goal.shown(target)}; a move of"
            f" {goal.shown(net)} changes this to {goal.shown(source - net)} and {goal.shown(target + net)}"
        )

    def _hold_back(self, goal: Goal, why: str) -> None:
        self.obstacles.append(f"{goal.name}: {why}")

    def _why_none(self, goal: Goal) -> str:
        if goal.is_measured and self._cooling:
            brokers = ", ".join(str(node_id) for node_id in sorted(self._cooling))
            return (
                f"partitions of broker {brokers} moved recently; the next load reports will show the effect"
            )
        if self._cluster_load.cooling:
            return (
                f"{self._cluster_load.cooling} partitions with traffic moved recently and cannot move again"
                " yet"
            )
        return "no move of a partition makes this measure more even without making another measure uneven"


def _harms(band: Band, source: float, target: float, weight: float) -> bool:
    """Whether the move increases the distance of one of the two brokers from the band."""
    return band.distance(source - weight) > band.distance(source) or band.distance(
        target + weight
    ) > band.distance(target)
