"""The planner: which partitions move next, and why; or why none does.

What lives here: a greedy search without I/O and without memory: the same picture gives the same plan. Goals are followed in their order. Every move, or swap
of two partitions, brings at least one broker nearer to the band of its goal (`goals.gain`), and pushes no broker out of the band of any other goal, or
further out. So the sum of all distances falls with every move, whichever goal asked for it: for loads that stay as they are the balancer comes to rest, and
two goals never undo each other's moves. Loads do not stay as they are: against noise there are the gap between the distance at which a goal begins and the
one at which it is content, the part of a move that must help, and cool-downs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ponor_runtime.identity import NodeId

from ponor_controller.domains.balancing.candidates import Shelves
from ponor_controller.domains.balancing.goals import Band, Goal, band_of, gain
from ponor_controller.domains.balancing.loads import PartitionKey
from ponor_controller.domains.balancing.picture import MovablePartition, Picture

PAIRED_BROKERS_MAX: Final = 8
"""So many of the fullest brokers are tried as sources, and of the emptiest as targets."""
SWAPPING_BROKERS_MAX: Final = 3
"""The same for swaps, which are tried when no single move helps."""
HELPFUL_PART_MIN: Final = 0.5
"""At least this part of the weight that moves must bring brokers nearer to the band: what moves a lot to gain a little is undone by the next gust."""
CONTENT_PART: Final = 0.5
"""A goal that acts is content within this part of the distance at which it begins."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How uneven is uneven, and how much may move."""

    threshold_percent: float
    moves_in_flight_max: int


class PlannedMove(NamedTuple):
    """A partition, where to, and the reason in one line of at most 256 characters."""

    partition: MovablePartition
    target_id: NodeId
    goal: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves in the order in which they were found; and why there are not more of them although something is uneven (empty: nothing is, afterwards)."""

    moves: tuple[PlannedMove, ...] = ()
    holding_back: str = ""


def plan(picture: Picture, goals: Sequence[Goal], limits: Limits) -> Plan:
    """Decide. See the module."""
    if len(picture.brokers) < 2:
        return Plan()
    search = _Search(picture, goals, limits)
    for goal in goals:
        search.follow(goal)
    return Plan(tuple(search.moves), "; ".join(search.obstacles))


def is_uneven(goal: Goal, amounts: Collection[float], percent: float) -> bool:
    """Whether a broker is outside of the band of so many percent around the mean."""
    band = band_of(goal, amounts, percent)
    return any(band.distance(amount) > 0 for amount in amounts)


class _Change(NamedTuple):
    """A partition that moves from one broker to another, and perhaps one that comes back for it. `order` is best first."""

    order: tuple[float, float, float, PartitionKey]
    source_id: NodeId
    target_id: NodeId
    leaving: MovablePartition
    returning: MovablePartition | None = None

    def net(self, goal: Goal) -> float:
        """What the target carries more afterwards, and the source less."""
        return goal.weight(self.leaving) - (0.0 if self.returning is None else goal.weight(self.returning))


class _Search:
    """The picture as it becomes while moves are chosen."""

    def __init__(self, picture: Picture, goals: Sequence[Goal], limits: Limits) -> None:
        self._picture = picture
        self._goals = goals
        self._limits = limits
        self._amounts = {
            goal.name: {broker.node_id: goal.carried(broker) for broker in picture.brokers} for goal in goals
        }
        content = limits.threshold_percent * CONTENT_PART
        self._bands = {goal.name: band_of(goal, self._amounts[goal.name].values(), content) for goal in goals}
        self._cooling = {broker.node_id for broker in picture.brokers if broker.cool_down_ms > 0}
        self._moved: set[PartitionKey] = set()
        self.moves: list[PlannedMove] = []
        self.obstacles: list[str] = []

    def follow(self, goal: Goal) -> None:
        """Choose moves until the goal is content, or say what keeps it from being so."""
        if not self._is_uneven(goal):
            return
        if self._picture.unknown:
            self._hold_back(goal, self._picture.unknown)
            return
        shelves = Shelves(goal, self._picture.movable)
        while True:
            if self._room == 0:
                self._hold_back(
                    goal, f"{self._limits.moves_in_flight_max} moves are under way, more are not begun"
                )
                return
            best = self._best(goal, shelves)
            if best is None:
                break
            self._take(goal, best)
        if self._is_uneven(goal):
            self._hold_back(goal, self._why_none(goal))

    def _is_uneven(self, goal: Goal) -> bool:
        return is_uneven(goal, self._amounts[goal.name].values(), self._limits.threshold_percent)

    @property
    def _room(self) -> int:
        """Moves that may still be begun."""
        under_way = self._picture.moves_in_flight + len(self.moves)
        return max(0, self._limits.moves_in_flight_max - under_way)

    def _best(self, goal: Goal, shelves: Shelves) -> _Change | None:
        for internal in (False, True):  # coordinators move when nothing else helps
            for source_id, target_id in self._pairs(goal, PAIRED_BROKERS_MAX):
                moves = self._moves(goal, shelves, source_id, target_id, internal=internal)
                best = self._best_of(goal, moves)
                if best is not None:
                    return best
            for source_id, target_id in self._pairs(goal, SWAPPING_BROKERS_MAX if self._room > 1 else 0):
                best = self._best_of(goal, self._swaps(goal, shelves, source_id, target_id))
                if best is not None:
                    return best
        return None

    def _best_of(self, goal: Goal, changes: Iterator[_Change]) -> _Change | None:
        worthy = (change for change in changes if not self._harms_others(goal, change))
        return min(worthy, key=lambda change: change.order, default=None)

    def _pairs(self, goal: Goal, brokers_max: int) -> Iterator[tuple[NodeId, NodeId]]:
        """Brokers between which something may move, the most uneven first."""
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
        self, goal: Goal, shelves: Shelves, source_id: NodeId, target_id: NodeId, *, internal: bool
    ) -> Iterator[_Change]:
        """Single moves between two brokers that help enough."""
        for partition in shelves.near(
            source_id, self._wanted(goal, source_id, target_id), internal=internal, without=self._moved
        ):
            weight = goal.weight(partition)
            helps = self._gain(goal, source_id, target_id, weight)
            if helps >= HELPFUL_PART_MIN * weight:
                idle_first = 0.0 if goal.is_measured else max(partition.traffic)
                order = (-helps, weight, idle_first, partition.key)
                yield _Change(order, source_id, target_id, partition)

    def _swaps(self, goal: Goal, shelves: Shelves, source_id: NodeId, target_id: NodeId) -> Iterator[_Change]:
        """Pairs of moves, there and back, for goals that single moves would harm."""
        wanted = self._wanted(goal, source_id, target_id)
        for leaving in shelves.near(source_id, wanted, internal=False, without=self._moved):
            for returning in shelves.lightest(target_id, without=self._moved):
                there, back = goal.weight(leaving), goal.weight(returning)
                helps = self._gain(goal, source_id, target_id, there - back)
                if there > back and helps >= HELPFUL_PART_MIN * (there + back):
                    order = (-helps, there + back, 0.0, leaving.key)
                    yield _Change(order, source_id, target_id, leaving, returning)

    def _wanted(self, goal: Goal, source_id: NodeId, target_id: NodeId) -> float:
        """What should go from one broker to another: as much as brings the nearer one of them to the mean."""
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

    def _take(self, goal: Goal, change: _Change) -> None:
        reason = self._reason(goal, change)
        for each in self._goals:
            amounts, net = self._amounts[each.name], change.net(each)
            amounts[change.source_id] -= net
            amounts[change.target_id] += net
        self._moved.add(change.leaving.key)
        self.moves.append(PlannedMove(change.leaving, change.target_id, goal.name, reason))
        if change.returning is not None:
            self._moved.add(change.returning.key)
            back = f"in return, so that nothing else becomes uneven: {reason}"
            self.moves.append(PlannedMove(change.returning, change.source_id, goal.name, back))

    def _reason(self, goal: Goal, change: _Change) -> str:
        amounts, mean = self._amounts[goal.name], self._bands[goal.name].mean
        source, target, net = amounts[change.source_id], amounts[change.target_id], change.net(goal)
        percent = 100 * (source - mean) / mean if mean else 0.0
        return (
            f"{goal.name}: broker {change.source_id} has {goal.shown(source)} ({percent:+.0f} % of the mean {goal.shown(mean)}), "
            f"broker {change.target_id} {goal.shown(target)}; with {goal.shown(net)} moved {goal.shown(source - net)} and {goal.shown(target + net)}"
        )

    def _hold_back(self, goal: Goal, why: str) -> None:
        self.obstacles.append(f"{goal.name}: {why}")

    def _why_none(self, goal: Goal) -> str:
        if goal.is_measured and self._cooling:
            brokers = ", ".join(str(node_id) for node_id in sorted(self._cooling))
            return f"partitions of broker {brokers} moved just now, the next reports show what that did"
        if self._picture.cooling:
            return (
                f"{self._picture.cooling} partitions with traffic moved lately and are left alone for a while"
            )
        return "no partition can move that would make it more even without making something else uneven"


def _harms(band: Band, source: float, target: float, weight: float) -> bool:
    """Whether one of two brokers gets further away from the band: to hand an excess from one to another is no help."""
    return band.distance(source - weight) > band.distance(source) or band.distance(
        target + weight
    ) > band.distance(target)
