"""What moved lately: for cool-downs, and to be explained.

What lives here: memory of this controller's term, bounded; the rows of moves under way are the image's. A new leader begins without it: partitions that moved
just before an election may move again.
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
"""More than a cluster has."""


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
    """A partition that is to be left alone."""

    at_ns: int
    by_balancer: bool


class RecentMoves:
    """See the module."""

    def __init__(self, settings: BalanceSettings) -> None:
        self._settings = settings
        self._partitions: dict[PartitionKey, _Moved] = {}
        """The latest at the end."""
        self._brokers: dict[NodeId, int] = {}
        self._begun: deque[BegunMove] = deque(maxlen=settings.balance_recent_moves_max)

    def clear(self) -> None:
        """Leadership begins."""
        self._partitions.clear()
        self._brokers.clear()
        self._begun.clear()

    def begun(self, move: BegunMove) -> None:
        """The balancer moves a partition."""
        self._begun.append(move)

    def moved(self, record: records_pb2.PartitionMoveBegun, now_ns: int) -> None:
        """A move was committed. A drain asks for none in particular: what it moved may move on."""
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
        """Brokers came or went: where the balancer put things was right for the brokers that there were. What people asked for still stands."""
        self._partitions = {key: moved for key, moved in self._partitions.items() if not moved.by_balancer}

    def touch(self, brokers: Sequence[NodeId], now_ns: int) -> None:
        """The balancer's moves of these brokers go on."""
        for node_id in brokers:
            self._brokers[node_id] = now_ns

    def is_cooling(self, key: PartitionKey, now_ns: int) -> bool:
        """Whether a partition moved lately."""
        moved = self._partitions.get(key)
        if moved is None:
            return False
        return now_ns - moved.at_ns < self._settings.balance_partition_cool_down_ms * 1_000_000

    def broker_cool_down_ms(self, node_id: NodeId, now_ns: int) -> int:
        """How long a broker is not judged by its traffic."""
        touched_ns = self._brokers.get(node_id)
        if touched_ns is None:
            return 0
        return max(0, self._settings.balance_broker_cool_down_ms - (now_ns - touched_ns) // 1_000_000)

    def forget_cooled(self, now_ns: int) -> None:
        """Let go of what is over."""
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
        """What the balancer began, the newest first."""
        return tuple(reversed(self._begun))
