"""Recent moves of this term: cool-downs, and the list for `ponor cluster balance --explain`.

A new leader starts with an empty list, so a partition that moved just before an election may move again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2
from ponor_runtime.identity import NodeId

from ponor_controller.domains.balancing.loads import PartitionKey
from ponor_controller.settings import BalanceSettings

COOLING_PARTITIONS_MAX: Final = 60_000
"""Bound of the partitions that cool down; above the number of partitions that a cluster can have."""


class BegunMove(NamedTuple):
    """A move that the balancer began."""

    topic: str
    partition: int
    source_id: NodeId
    target_id: NodeId
    goal: str
    reason: str
    begun_at_ms: int


class _Moved(NamedTuple):
    """A partition that cools down after a move."""

    at_ns: int
    by_balancer: bool


class RecentMoves:
    """Cool-downs of partitions and brokers, and the last moves that the balancer began."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._settings = settings
        self._partitions: dict[PartitionKey, _Moved] = {}
        """Ordered by the time of the move, the newest last."""
        self._brokers: dict[NodeId, int] = {}
        self._begun: deque[BegunMove] = deque(maxlen=settings.balance_recent_moves_max)

    def clear(self) -> None:
        """Discard everything, because leadership began or ended."""
        self._partitions.clear()
        self._brokers.clear()
        self._begun.clear()

    def begun(self, move: BegunMove) -> None:
        """Record a move that the balancer began."""
        self._begun.append(move)

    def moved(self, record: records_pb2.PartitionMoveBegun, now_ns: int) -> None:
        """Start the cool-down after a committed move. Drains cause none, because they do not select targets
        by load.
        """
        if record.cause == records_pb2.MOVE_CAUSE_DRAIN:
            return
        by_balancer = record.cause == records_pb2.MOVE_CAUSE_BALANCE
        key = (record.topic_id, record.partition)
        self._partitions.pop(key, None)
        self._partitions[key] = _Moved(now_ns, by_balancer)
        if len(self._partitions) > COOLING_PARTITIONS_MAX:
            del self._partitions[next(iter(self._partitions))]
        if by_balancer:
            self.touch((NodeId(record.source_id), NodeId(record.target_id)), now_ns)

    def release(self) -> None:
        """The set of brokers changed: end cool-downs of the balancer's moves, but not of operators' moves."""
        self._partitions = {key: moved for key, moved in self._partitions.items() if not moved.by_balancer}

    def touch(self, brokers: Sequence[NodeId], now_ns: int) -> None:
        """Restart the cool-down of brokers whose partitions the balancer moves."""
        for node_id in brokers:
            self._brokers[node_id] = now_ns

    def is_cooling(self, key: PartitionKey, now_ns: int) -> bool:
        """Whether a partition moved recently."""
        moved = self._partitions.get(key)
        if moved is None:
            return False
        return now_ns - moved.at_ns < self._settings.balance_partition_cool_down_ms * 1_000_000

    def broker_cool_down_ms(self, node_id: NodeId, now_ns: int) -> int:
        """Remaining time for which a broker's traffic is ignored."""
        touched_ns = self._brokers.get(node_id)
        if touched_ns is None:
            return 0
        return max(0, self._settings.balance_broker_cool_down_ms - (now_ns - touched_ns) // 1_000_000)

    def drop_expired(self, now_ns: int) -> None:
        """Drop finished cool-downs."""
        partition_ns = self._settings.balance_partition_cool_down_ms * 1_000_000
        while self._partitions:
            key, moved = next(iter(self._partitions.items()))
            if now_ns - moved.at_ns < partition_ns:
                break
            del self._partitions[key]
        broker_ns = self._settings.balance_broker_cool_down_ms * 1_000_000
        for node_id in [
            each for each, touched_ns in self._brokers.items() if now_ns - touched_ns >= broker_ns
        ]:
            del self._brokers[node_id]

    @property
    def begun_moves(self) -> Sequence[BegunMove]:
        """Moves that the balancer began, the newest first."""
        return tuple(reversed(self._begun))
