"""The planner's input: the loads of brokers and partitions that will result when all present moves are done.

They are computed from the image, load reports and recent moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ponor_kafka.internal_topics import INTERNAL_TOPICS
from ponor_metadata.nouns.nodes import NODES, NodeRow, WalKind
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, PARTITIONS_LED_BY, TOPICS, MoveCause, PartitionRow
from ponor_metadata.nouns.wals import WALS
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId

from ponor_controller.domains.balancing.loads import NO_TRAFFIC, LoadBook, PartitionKey, Traffic
from ponor_controller.domains.balancing.recent_moves import RecentMoves
from ponor_controller.settings import BalanceSettings
from ponor_controller.shared_rules.placement import is_live, led_counts


class BrokerStanding(NamedTuple):
    """A live broker and its load."""

    node_id: NodeId
    partitions: int
    traffic: Traffic = NO_TRAFFIC
    cool_down_ms: int = 0
    """Remaining time for which its traffic is ignored after a move."""
    cpu: float = 0.0
    """CPU time as a share of one core; no goal balances it."""
    reported_ms_ago: int = -1
    """Age of its last report in ms; -1 if it has not reported in this term."""


class MovablePartition(NamedTuple):
    """A partition that is not moving and did not move recently."""

    key: PartitionKey
    topic: str
    """The topic's name."""
    source_id: NodeId
    traffic: Traffic = NO_TRAFFIC
    internal: bool = False
    """Whether its topic is a coordinator's internal topic: groups or transactions wait while the partition
    moves."""


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """Loads of brokers, sorted by node id, and movable partitions, sorted by key.

    `brokers` contains the brokers that participate in balancing.
    """

    brokers: tuple[BrokerStanding, ...]
    movable: tuple[MovablePartition, ...] = ()
    """All movable partitions with traffic, and for each broker as many movable partitions without traffic as
    may move at the same time; empty if nothing is uneven."""
    moves_in_flight: int = 0
    """Moves in progress that the balancer began."""
    cooling: int = 0
    """Partitions with traffic that are excluded because they moved recently."""
    others: tuple[BrokerStanding, ...] = ()
    """Live brokers that do not participate, because they drain or still start."""
    unknown: str = ""
    """Why the traffic is not known; empty if it is known."""


JOIN_MS: Final = 1_000
"""How long after its registration a broker begins to participate. Before that it may still be opening its
ports."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The input of `cluster_load`."""

    view: View
    loads: LoadBook
    recent: RecentMoves
    is_suspected: Callable[[NodeId], bool]
    settings: BalanceSettings
    now_ms: int
    """Cluster time."""
    now_ns: int
    """Time of this process's monotonic clock, which also stamps the reports."""
    unknown: str = ""
    """Why loads are not available yet; empty if they are available."""

    def leader_of(self, key: PartitionKey) -> NodeId | None:
        """See `loads.LeaderOf`."""
        row = self.view[PARTITIONS].get(key)
        return None if row is None else row.leader_id


def measure_load(sources: Sources, is_uneven: Callable[[Sequence[BrokerStanding]], bool]) -> ClusterLoad:
    """The load of the cluster. If nothing is uneven, partitions are left out, because reading them is most of
    the work.
    """
    view = sources.view
    live = [row for row in view[NODES] if is_live(row, sources.is_suspected)]
    participating = {row.node_id for row in live if _participates(row, sources)}
    traffic = {row.node_id: _rest(sources, row.node_id) for row in live}
    busy: list[tuple[PartitionRow, Traffic]] = []
    """Partitions with traffic that are not moving."""
    for key, carried in sources.loads.partitions():
        row, move = view[PARTITIONS].get(key), view[MOVES].get(key)
        at = None if row is None else row.leader_id if move is None else move.target_id
        if row is not None and at in traffic:
            traffic[at] = traffic[at].plus(carried)
            if move is None and at in participating:
                busy.append((row, carried))
    counts = led_counts(view, traffic)
    standings = [_standing(each, counts[each], traffic[each], sources) for each in traffic]
    brokers = tuple(each for each in standings if each.node_id in participating)
    cluster_load = ClusterLoad(
        brokers=brokers,
        moves_in_flight=sum(move.cause is MoveCause.BALANCE for move in view[MOVES]),
        others=tuple(each for each in standings if each.node_id not in participating),
        unknown=sources.unknown or _silent(brokers, sources),
    )
    return _with_partitions(cluster_load, busy, sources) if is_uneven(brokers) else cluster_load


def _with_partitions(
    cluster_load: ClusterLoad, busy: list[tuple[PartitionRow, Traffic]], sources: Sources
) -> ClusterLoad:
    movable = [
        _movable(row, sources.view, carried)
        for row, carried in busy
        if not sources.recent.is_cooling((row.topic_id, row.partition), sources.now_ns)
    ]
    cooling = len(busy) - len(movable)
    known = {(row.topic_id, row.partition) for row, _ in busy}
    for broker in cluster_load.brokers:
        movable.extend(_idle(broker.node_id, known, sources))
    movable.sort(key=lambda partition: partition.key)
    return replace(cluster_load, movable=tuple(movable), cooling=cooling)


def _participates(row: NodeRow, sources: Sources) -> bool:
    if row.draining or sources.now_ms - row.registered_at_ms < JOIN_MS:
        return False
    return row.wal is not WalKind.OBJECT or (row.node_id, row.node_epoch) in sources.view[WALS]


def _rest(sources: Sources, node_id: NodeId) -> Traffic:
    load = sources.loads.broker(node_id)
    return NO_TRAFFIC if load is None else load.rest


def _standing(node_id: NodeId, partitions: int, traffic: Traffic, sources: Sources) -> BrokerStanding:
    load = sources.loads.broker(node_id)
    return BrokerStanding(
        node_id=node_id,
        partitions=partitions,
        traffic=traffic,
        cool_down_ms=sources.recent.broker_cool_down_ms(node_id, sources.now_ns),
        cpu=0.0 if load is None else load.cpu,
        reported_ms_ago=-1 if load is None else (sources.now_ns - load.reported_ns) // 1_000_000,
    )


def _idle(node_id: NodeId, known: set[PartitionKey], sources: Sources) -> Iterator[MovablePartition]:
    """A broker's movable partitions without traffic, ordinary topics first; at most as many as may move at
    the same time.
    """
    left = sources.settings.balance_moves_in_flight_max
    internal: list[MovablePartition] = []
    for row in sources.view[PARTITIONS].find(PARTITIONS_LED_BY, node_id):
        key = (row.topic_id, row.partition)
        if key in known or key in sources.view[MOVES] or sources.recent.is_cooling(key, sources.now_ns):
            continue
        partition = _movable(row, sources.view, NO_TRAFFIC)
        if partition.internal:
            internal.append(partition)
            continue
        yield partition
        left -= 1
        if left == 0:
            return
    yield from internal[:left]


def _movable(row: PartitionRow, view: View, traffic: Traffic) -> MovablePartition:
    topic = view[TOPICS].get(row.topic_id)
    assert topic is not None, "the topic of a partition does not exist"
    return MovablePartition(
        key=(row.topic_id, row.partition),
        topic=topic.name,
        source_id=row.leader_id,
        traffic=traffic,
        internal=topic.name in INTERNAL_TOPICS,
    )


def _silent(brokers: Sequence[BrokerStanding], sources: Sources) -> str:
    age_ms_max = sources.settings.balance_report_age_ms_max
    for broker in brokers:
        node_id, load = broker.node_id, sources.loads.broker(broker.node_id)
        if load is not None and load.is_busy:
            age_ms = (sources.now_ns - load.reported_ns) // 1_000_000
            if age_ms > age_ms_max:
                return f"broker {node_id} had traffic and has sent no load report for {age_ms // 1000} s"
    return ""
