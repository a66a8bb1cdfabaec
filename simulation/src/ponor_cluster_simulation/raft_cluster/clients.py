"""Clients of a Raft group: they read and write registers, give up after a timeout, and record the history.

A write is acknowledged when the replica that proposed its entry applies the entry at the proposed index. If
that replica applies another entry at this index, the write has failed. Otherwise its result is unknown. Reads
may go to any replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from ponor_raft.entry import Entry
from ponor_raft.errors import NotLeaderError, ProposalsFullError
from ponor_raft.ready import ReadReady

from ponor_cluster_simulation.histories.operation import Operation
from ponor_cluster_simulation.raft_cluster.invariants import RaftInvariants
from ponor_cluster_simulation.raft_cluster.replica import Replica
from ponor_cluster_simulation.raft_cluster.state_machine import Put
from ponor_cluster_simulation.raft_cluster.timeline import Timeline

KEYS = 4
PATIENCE_MS = 2_500.0
THINK_MS_MAX = 160.0


@dataclass(slots=True)
class _Asked:
    """An operation in flight. `index` is the proposed entry's index, or the index that a read waits for."""

    client: int
    key: int
    value: int | None
    called: float
    replica: Replica
    life: int
    index: int = -1
    term: int = 0
    floor: int = 0
    ended: bool = False


class Clients:
    """All clients of a group; `replicas` returns the running replicas."""

    def __init__(
        self,
        timeline: Timeline,
        chance: Random,
        count: int,
        replicas: Callable[[], list[Replica]],
        invariants: RaftInvariants,
    ) -> None:
        self._timeline = timeline
        self._chance = chance
        self._count = count
        self._replicas = replicas
        self._invariants = invariants
        self._moment = 0.0
        self._next_value = 0
        self._next_context = 0
        self._writes: dict[tuple[Replica, int, int], _Asked] = {}
        """Unanswered writes by replica, life of the replica, and index."""
        self._asked_reads: dict[tuple[Replica, int], _Asked] = {}
        self._waiting_reads: dict[Replica, list[_Asked]] = {}
        self.stopped = False
        self.history: list[Operation] = []
        self.counts: Counter[str] = Counter()

    def start(self) -> None:
        """Start all clients, each at a random time."""
        for client in range(self._count):
            self._think(client)

    def finish(self) -> None:
        """Stop; operations in flight have an unknown result."""
        self.stopped = True
        for asked in list(self._writes.values()):
            self._give_up(asked)

    # --- requests ---

    def _think(self, client: int) -> None:
        self._timeline.after(THINK_MS_MAX * self._chance.random(), partial(self._ask, client))

    def _ask(self, client: int) -> None:
        if self.stopped:
            return
        running = self._replicas()
        if not running:
            self._think(client)
            return
        chance = self._chance
        leaders = [each for each in running if each.node is not None and each.node.is_leader]
        if chance.random() < 0.5:
            replica = chance.choice(leaders if leaders and chance.random() < 0.8 else running)
            self._write(client, replica)
        else:
            self._read(client, chance.choice(running))

    def _write(self, client: int, replica: Replica) -> None:
        self._next_value += 1
        put = Put(self._chance.randrange(KEYS), self._next_value)
        asked = _Asked(client, put.key, put.value, self._now(), replica, replica.life)
        try:
            assert replica.node is not None
            if not replica.node.has_room:
                raise ProposalsFullError("the replica has no room for proposals before its next snapshot")
            entry = replica.node.propose(put.encode())
        except (NotLeaderError, ProposalsFullError) as refused:
            self.counts[type(refused).__name__] += 1
            self._think(client)
            return
        asked.index, asked.term = entry.index, entry.term
        self._writes[replica, replica.life, entry.index] = asked
        self._timeline.after(PATIENCE_MS, partial(self._give_up, asked))
        replica.pump()

    def _read(self, client: int, replica: Replica) -> None:
        self._next_context += 1
        asked = _Asked(client, self._chance.randrange(KEYS), None, self._now(), replica, replica.life)
        asked.floor = self._invariants.acknowledged_index
        context = self._next_context
        self._asked_reads[replica, context] = asked
        self._timeline.after(PATIENCE_MS, partial(self._give_up, asked))
        replica.call(lambda node: node.read_index(context))

    def _give_up(self, asked: _Asked) -> None:
        """Stop waiting; the result is unknown."""
        if not asked.ended:
            self.counts["given up"] += 1
            self._end(asked, None)

    # --- answers ---

    def applied(self, replica: Replica, entry: Entry) -> None:
        """Decide the outcome of the proposal that this replica made at the index of an applied entry."""
        asked = self._writes.pop((replica, replica.life, entry.index), None)
        if asked is not None and not asked.ended:
            if asked.term == entry.term:
                self._invariants.acknowledged(entry.index)
                self.counts["written"] += 1
                self._end(asked, self._now())
            else:
                self.counts["overwritten"] += 1
                self._end(asked, None, took_effect=False)
        self.progressed(replica)

    def progressed(self, replica: Replica) -> None:
        """Serve reads that waited for the replica's applied index."""
        waiting = self._waiting_reads.get(replica)
        if not waiting:
            return
        left = []
        for asked in waiting:
            if asked.life != replica.life or asked.ended:
                continue
            if asked.index <= replica.state.index:
                self._serve(asked)
            else:
                left.append(asked)
        self._waiting_reads[replica] = left

    def read_ready(self, replica: Replica, read: ReadReady) -> None:
        """Handle the core's answer to a read."""
        asked = self._asked_reads.pop((replica, read.context), None)
        if asked is None or asked.life != replica.life:
            return
        if read.index is None:
            self.counts["read refused"] += 1
            if not asked.ended:
                self._end(asked, None, took_effect=False)
            return
        self._invariants.read(replica, read.index, asked.floor)
        if asked.ended:
            return
        asked.index = read.index
        self._waiting_reads.setdefault(replica, []).append(asked)
        self.progressed(replica)

    def _serve(self, asked: _Asked) -> None:
        asked.value = asked.replica.state.values.get(asked.key)
        node = asked.replica.node
        self.counts[
            "read at the leader" if node is not None and node.is_leader else "read at a follower"
        ] += 1
        self._end(asked, self._now())

    def _end(self, asked: _Asked, returned: float | None, *, took_effect: bool = True) -> None:
        asked.ended = True
        is_write = asked.term > 0
        if took_effect and (returned is not None or is_write):
            kind = "write" if is_write else "read"
            self.history.append(
                Operation(f"client {asked.client}", str(asked.key), kind, asked.value, asked.called, returned)
            )
        self._think(asked.client)

    def _now(self) -> float:
        """A unique time for every call and return, in the order of events."""
        self._moment += 1
        return self._moment
