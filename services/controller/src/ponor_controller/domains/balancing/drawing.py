"""Draws the planner's picture from the image, the reports and what moved lately.

What lives here: which brokers take part, and which partitions may move. No decision about moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ponor_metadata.nouns.nodes import NODES, NodeRow, WalKind
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, PARTITIONS_LED_BY, TOPICS, MoveCause, PartitionRow
from ponor_metadata.nouns.wals import WALS
from ponor_metadata.tables.schema import View
from ponor_runtime.identity import NodeId

from ponor_controller.domains.balancing.loads import NO_TRAFFIC, LoadBook, PartitionKey, Traffic
from ponor_controller.domains.balancing.picture import BrokerStanding, MovablePartition, Picture
from ponor_controller.domains.balancing.recent_moves import RecentMoves
from ponor_controller.settings import BalanceSettings
from ponor_controller.shared_rules.placement import is_live, led_counts

JOIN_MS: Final = 1_000
"""A broker that registered takes part so much later: it may still be opening its ports."""
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics in which Kafka's coordinators keep their state."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What a picture is drawn from."""

    view: View
    loads: LoadBook
    recent: RecentMoves
    is_suspected: Callable[[NodeId], bool]
    settings: BalanceSettings
    now_ms: int
    """Cluster time."""
    now_ns: int
    """This process's clock, as the reports have it."""
    unknown: str = ""
    """Why nothing can be known yet."""

    def leader_of(self, key: PartitionKey) -> NodeId | None:
        """See `loads.LeaderOf`."""
        row = self.view[PARTITIONS].get(key)
        return None if row is None else row.leader_id


def draw(sources: Sources, is_uneven: Callable[[Sequence[BrokerStanding]], bool]) -> Picture:
    """The picture as of now; without partitions when nothing is uneven, for looking at each of them is most of the work."""
    view = sources.view
    live = [row for row in view[NODES] if is_live(row, sources.is_suspected)]
    taking_part = {row.node_id for row in live if _takes_part(row, sources)}
    traffic = {row.node_id: _rest(sources, row.node_id) for row in live}
    busy: list[tuple[PartitionRow, Traffic]] = []
    """Partitions with traffic that stay where they are for now."""
    for key, carried in sources.loads.partitions():
        row, move = view[PARTITIONS].get(key), view[MOVES].get(key)
        at = None if row is None else row.leader_id if move is None else move.target_id
        if row is not None and at in traffic:
            traffic[at] = traffic[at].plus(carried)
            if move is None and at in taking_part:
                busy.append((row, carried))
    counts = led_counts(view, traffic)
    standings = [_standing(each, counts[each], traffic[each], sources) for each in traffic]
    brokers = tuple(each for each in standings if each.node_id in taking_part)
    picture = Picture(
        brokers=brokers,
        moves_in_flight=sum(move.cause is MoveCause.BALANCE for move in view[MOVES]),
        others=tuple(each for each in standings if each.node_id not in taking_part),
        unknown=sources.unknown or _silent(brokers, sources),
    )
    return _with_partitions(picture, busy, sources) if is_uneven(brokers) else picture


def _with_partitions(picture: Picture, busy: list[tuple[PartitionRow, Traffic]], sources: Sources) -> Picture:
    movable = [
        _movable(row, sources.view, carried)
        for row, carried in busy
        if not sources.recent.is_cooling((row.topic_id, row.partition), sources.now_ns)
    ]
    cooling = len(busy) - len(movable)
    known = {(row.topic_id, row.partition) for row, _ in busy}
    for broker in picture.brokers:
        movable.extend(_idle(broker.node_id, known, sources))
    movable.sort(key=lambda partition: partition.key)
    return replace(picture, movable=tuple(movable), cooling=cooling)


def _takes_part(row: NodeRow, sources: Sources) -> bool:
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
    """Partitions of a broker without traffic, of ordinary topics first; no more than may move at once."""
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
    assert topic is not None, "a partition has a topic"
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
                return f"broker {node_id} had traffic and has not reported for {age_ms // 1000} s"
    return ""
