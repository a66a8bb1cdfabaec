"""Handing leadership to another voter on purpose.

What lives here: one transfer at a time. Proposals are refused meanwhile, or the target might never catch up (hashicorp/raft GH-581); after `transfer_ticks`
they are let in again. `TimeoutNow` may get lost, so it is repeated until this replica hears of the new term; repetitions carry the old term and are
ignored by then.
"""

from __future__ import annotations

from ponor_raft.errors import TransferError
from ponor_raft.membership import ReplicaId
from ponor_raft.messages import TimeoutNow
from ponor_raft.replica import Replica
from ponor_raft.replication import Replication


class Transfer:
    """Exists while this replica leads, for one term."""

    def __init__(self, replica: Replica, replication: Replication) -> None:
        self._replica = replica
        self._replication = replication
        self._elapsed_ticks = 0
        self._told = False
        self.target: ReplicaId | None = None

    def begin(self, target: ReplicaId) -> None:
        """Let `target` catch up and tell it to campaign. To the same target a second time: nothing changes.

        Raises:
            TransferError: the target is no other voter.
        """
        if target == self._replica.own or target not in self._replica.membership.voters:
            raise TransferError(
                f"leadership goes to another voter only, and node {target.node_id} is none; promote it first"
            )
        if target == self.target:
            return
        self.target = target
        self._elapsed_ticks = 0
        self._told = False
        self.tell_when_caught_up()

    def tell_when_caught_up(self) -> None:
        """After each acknowledgement."""
        target = self.target
        if target is None or self._told:
            return
        if self._replication.progress[target].match_index == self._replica.log.last_index:
            self._told = True
            self._replica.outbox.send(TimeoutNow(self._replica.own, target, self._replica.term))

    def repeat(self) -> None:
        """With each round of heartbeats."""
        self._told = False
        self.tell_when_caught_up()

    def tick(self) -> None:
        """Give up in time."""
        if self.target is None:
            return
        self._elapsed_ticks += 1
        if self._elapsed_ticks >= self._replica.limits.transfer_ticks:
            self.target = None
