"""Leadership transfer to another voter, one at a time.

During a transfer proposals are refused, because otherwise the target might never catch up (hashicorp/raft
GH-581). After `transfer_ticks` they are accepted again. `TimeoutNow` may be lost, so it is repeated until
this replica sees the new term. Repetitions contain the old term, so a replica in the new term ignores them.
"""

from __future__ import annotations

from ponor_raft.errors import TransferError
from ponor_raft.membership import ReplicaId
from ponor_raft.messages import TimeoutNow
from ponor_raft.replica import Replica
from ponor_raft.replication import Replication


class Transfer:
    """Leadership transfer during one term of this leader."""

    def __init__(self, replica: Replica, replication: Replication) -> None:
        self._replica = replica
        self._replication = replication
        self._elapsed_ticks = 0
        self._has_sent_timeout = False
        self.target: ReplicaId | None = None

    def begin(self, target: ReplicaId) -> None:
        """Let `target` catch up, then send `TimeoutNow` to it.

        Does nothing if a transfer to the same target is in progress.

        Raises:
            TransferError: the target is not another voter.
        """
        if target == self._replica.own or target not in self._replica.membership.voters:
            raise TransferError(
                f"node {target.node_id} is not another voter, so it cannot lead; promote it first"
            )
        if target == self.target:
            return
        self.target = target
        self._elapsed_ticks = 0
        self._has_sent_timeout = False
        self.start_election_when_caught_up()

    def start_election_when_caught_up(self) -> None:
        """Send `TimeoutNow` once the target has acknowledged the whole log."""
        target = self.target
        if target is None or self._has_sent_timeout:
            return
        if self._replication.progress[target].match_index == self._replica.log.last_index:
            self._has_sent_timeout = True
            self._replica.outbox.send(TimeoutNow(self._replica.own, target, self._replica.term))

    def repeat(self) -> None:
        """Repeat `TimeoutNow` with each heartbeat round."""
        self._has_sent_timeout = False
        self.start_election_when_caught_up()

    def tick(self) -> None:
        """Advance time by one tick; abort the transfer after `transfer_ticks`."""
        if self.target is None:
            return
        self._elapsed_ticks += 1
        if self._elapsed_ticks >= self._replica.limits.transfer_ticks:
            self.target = None
