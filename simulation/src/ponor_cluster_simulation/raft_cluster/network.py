"""Links between replicas: they lose, repeat, delay and reorder messages, and may be cut in one direction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from ponor_raft.membership import ReplicaId
from ponor_raft.messages import Message

from ponor_cluster_simulation.raft_cluster.swarm import Swarm
from ponor_cluster_simulation.raft_cluster.timeline import Timeline

DELAY_MS = (0.5, 3.0)
STRAY_MS_MAX = 1_500.0
TOLD_OF_LOSS = 0.3
"""Share of the losses that the network reports to the sender."""


class RaftNetwork:
    """All links; `deliver` and `unreachable` report to the group."""

    def __init__(
        self,
        timeline: Timeline,
        chance: Random,
        swarm: Swarm,
        deliver: Callable[[Message], None],
        unreachable: Callable[[ReplicaId, ReplicaId], None],
    ) -> None:
        self._timeline = timeline
        self._chance = chance
        self._swarm = swarm
        self._deliver = deliver
        self._unreachable = unreachable
        self._cut: set[tuple[ReplicaId, ReplicaId]] = set()
        self._arrived: dict[tuple[ReplicaId, ReplicaId], float] = {}
        self._sent = 0
        self._broken: dict[ReplicaId, int] = {}
        """Replica to the number of messages that had been sent when its streams last broke."""
        self.calm = False
        self.counts: Counter[str] = Counter()

    def cut(self, sender: ReplicaId, to: ReplicaId) -> None:
        """Cut one direction."""
        self._cut.add((sender, to))

    def connects(self, one: ReplicaId, other: ReplicaId) -> bool:
        """Whether both directions work."""
        return not {(one, other), (other, one)} & self._cut

    def heal(self) -> None:
        """Repair all links."""
        self._cut.clear()

    def break_streams(self, own: ReplicaId) -> None:
        """Drop all messages in flight from and to a replica."""
        self._broken[own] = self._sent

    def send(self, message: Message) -> None:
        """Send a message."""
        link = (message.sender, message.to)
        chance, swarm = self._chance, self._swarm
        if link in self._cut or (not self.calm and chance.random() < swarm.loss):
            self.counts["lost"] += 1
            if chance.random() < TOLD_OF_LOSS:
                self._timeline.after(1.0, partial(self._unreachable, *link))
            return
        self._carry(link, message)
        if not self.calm and chance.random() < swarm.duplication:
            self.counts["repeated"] += 1
            self._carry(link, message)

    def _carry(self, link: tuple[ReplicaId, ReplicaId], message: Message) -> None:
        chance = self._chance
        self._sent += 1
        arrives = self._timeline.now_ms + DELAY_MS[0] + (DELAY_MS[1] - DELAY_MS[0]) * chance.random()
        if not self.calm and chance.random() < self._swarm.stray:
            self.counts["stray"] += 1
            arrives += STRAY_MS_MAX * chance.random() ** 3
        else:
            # Each ordered pair of replicas has one stream. Only stray messages may overtake others.
            arrives = max(arrives, self._arrived.get(link, 0.0))
            self._arrived[link] = arrives
        self._timeline.at(arrives, partial(self._arrive, link, message, self._sent))

    def _arrive(self, link: tuple[ReplicaId, ReplicaId], message: Message, number: int) -> None:
        broken = max(self._broken.get(link[0], 0), self._broken.get(link[1], 0))
        if link in self._cut or number <= broken:
            self.counts["lost"] += 1
        else:
            self._deliver(message)
