"""Linearizable reads (read index): heartbeat rounds that prove leadership, and reads forwarded by followers.

There are no lease reads: a process could check its lease, be paused, and then serve a read although the lease
has expired (etcd-io/etcd #20418). The answer to a read is a commit index taken after the read arrived. It is
sent when a majority has echoed a heartbeat round that started after the arrival.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from ponor_raft.membership import ReplicaId
from ponor_raft.messages import ReadIndexRequest, ReadIndexResponse
from ponor_raft.ready import ReadReady
from ponor_raft.replica import Replica
from ponor_raft.replication import Replication

_WIRE_CONTEXT_BITS: Final = 31


class _Read(NamedTuple):
    """A read and its origin: a follower, or a local caller (`origin` None)."""

    origin: ReplicaId | None
    context: int


class _Round(NamedTuple):
    """Reads that wait for the echo of round `number`."""

    number: int
    commit: int
    reads: list[_Read]


class ReadRounds:
    """The leader's side; exists for one term."""

    def __init__(self, replica: Replica, replication: Replication) -> None:
        self._replica = replica
        self._replication = replication
        self._number = 0
        self._arrived: list[_Read] = []
        self._rounds: deque[_Round] = deque()
        self._waiting = 0

    @property
    def newest_round(self) -> int:
        """Number of the newest round that started; 0 before the first."""
        return self._number

    @property
    def confirmed_round(self) -> int:
        """Newest round that a majority echoed. It proves that this replica was the leader when the round
        started.
        """
        replica = self._replica
        progress = self._replication.progress
        membership = replica.membership
        echoed = sorted(
            (
                self._number if voter == replica.own else progress[voter].echoed_round
                for voter in membership.voters
            ),
            reverse=True,
        )
        return echoed[membership.quorum - 1]

    def add(self, origin: ReplicaId | None, context: int) -> None:
        """Add a read. If the limit is reached, refuse it immediately."""
        read = _Read(origin, context)
        if self._waiting >= self._replica.limits.reads_max:
            self._answer(read, None)
            return
        self._waiting += 1
        self._arrived.append(read)

    def flush(self) -> None:
        """Start a round for new reads unless one is in progress; reads that arrive during a round share the
        next one.
        """
        if self._arrived and not self._rounds and self._replication.has_committed_own_term:
            self.begin_round()

    def begin_round(self) -> None:
        """Send a round of heartbeats. When a majority has echoed it, every read that arrived before is
        confirmed.

        Until an entry of the current term is committed, this leader's commit index may be lower than that of
        the former leader, so reads wait.
        """
        self._number += 1
        self._replication.send_heartbeats(self._number)
        if self._arrived and self._replication.has_committed_own_term:
            self._rounds.append(_Round(self._number, self._replica.log.commit, self._arrived))
            self._arrived = []
            self._confirm()

    def on_echo(self, sender: ReplicaId, number: int) -> None:
        """Handle a member's answer to the heartbeat of a round."""
        if number > self._number:
            self._replica.drop("echo of a future round")
            return
        progress = self._replication.progress[sender]
        if number > progress.echoed_round:
            progress.echoed_round = number
            if self._rounds:
                self._confirm()

    def refuse_all(self) -> None:
        """Refuse all waiting reads because this replica no longer leads."""
        waiting = [read for group in self._rounds for read in group.reads] + self._arrived
        self._rounds.clear()
        self._arrived = []
        self._waiting = 0
        for read in waiting:
            self._answer(read, None)

    def _confirm(self) -> None:
        proven = self.confirmed_round
        while self._rounds and self._rounds[0].number <= proven:
            group = self._rounds.popleft()
            self._waiting -= len(group.reads)
            for read in group.reads:
                self._answer(read, group.commit)

    def _answer(self, read: _Read, index: int | None) -> None:
        replica = self._replica
        if read.origin is None:
            replica.outbox.reads.append(ReadReady(read.context, index))
        else:
            replica.outbox.send(
                ReadIndexResponse(replica.own, read.origin, replica.term, read.context, index or 0)
            )

    def validate(self) -> None:
        """Assert the invariants between calls."""
        assert self._waiting == len(self._arrived) + sum(len(group.reads) for group in self._rounds)
        assert self._waiting <= self._replica.limits.reads_max
        assert all(group.commit <= self._replica.log.commit for group in self._rounds)


class ForwardedReads:
    """The follower's side.

    Request numbers start at a random value, so that a late answer to an earlier process of this replica
    matches no request.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._next = replica.draw(1 << _WIRE_CONTEXT_BITS) << _WIRE_CONTEXT_BITS
        self._waiting: dict[
            int, tuple[int, int]
        ] = {}  # by wire context: the caller's context and the tick at which the read times out
        self._ticks = 0

    def add(self, context: int) -> None:
        """Forward a read to the leader; refuse it if there is no leader or `reads_max` reads wait."""
        replica = self._replica
        if replica.leader is None or len(self._waiting) >= replica.limits.reads_max:
            replica.outbox.reads.append(ReadReady(context, None))
            return
        self._next += 1
        self._waiting[self._next] = (context, self._ticks + replica.limits.election_ticks)
        replica.outbox.send(ReadIndexRequest(replica.own, replica.leader, replica.term, self._next))

    def on_response(self, response: ReadIndexResponse) -> None:
        """Handle the leader's answer, which may be late."""
        waiting = self._waiting.pop(response.context, None)
        if waiting is None:
            self._replica.drop("late read index")
            return
        self._replica.outbox.reads.append(ReadReady(waiting[0], response.index or None))

    def tick(self) -> None:
        """Refuse reads that got no answer within an election timeout: the request or the answer was lost."""
        self._ticks += 1
        while self._waiting:
            wire_context, (context, give_up_at) = next(iter(self._waiting.items()))
            if give_up_at > self._ticks:
                return
            del self._waiting[wire_context]
            self._replica.outbox.reads.append(ReadReady(context, None))

    def refuse_all(self) -> None:
        """Refuse all waiting reads, because the leader changed or was lost."""
        for context, _ in self._waiting.values():
            self._replica.outbox.reads.append(ReadReady(context, None))
        self._waiting.clear()

    def validate(self) -> None:
        """Assert the invariants between calls."""
        assert len(self._waiting) <= self._replica.limits.reads_max
