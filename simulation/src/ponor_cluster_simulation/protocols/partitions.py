"""Partitions: who leads one, and how it comes to another broker.

What lives here: the rules at the controller. Each can be dropped by name, for models that show what it is there for; nothing else drops one. Whether the streams of a partition are closed is told
by the caller, who keeps them by the rules of `streams`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from ponor_cluster_simulation.protocols.streams import NOBODY, NotAllowedError


class Partition(NamedTuple):
    """A partition as far as its protocol goes. While it moves, `target` is the broker that is to lead it, and `leader` leads it still."""

    leader: int = NOBODY
    epoch: int = -1
    target: int = NOBODY

    @property
    def moves(self) -> bool:
        """Whether it is on its way."""
        return self.target != NOBODY


@dataclass(frozen=True, slots=True)
class PartitionRules:
    """The rules; each may be dropped.

    Attributes:
        epoch_rises: an election is at an epoch above all before.
        closed_before_election: another leader is elected when the streams are closed, or the leader lost its rights.
        one_move_at_a_time: what moves is not moved elsewhere.
    """

    epoch_rises: bool = True
    closed_before_election: bool = True
    one_move_at_a_time: bool = True


ALL_RULES: Final = PartitionRules()


def begun(partition: Partition, source: int, target: int, rules: PartitionRules = ALL_RULES) -> Partition:
    """The partition on its way.

    Raises:
        NotAllowedError: it moves already, the source does not lead it, or it is there.
    """
    if rules.one_move_at_a_time and partition.moves:
        raise NotAllowedError(f"a move to {target} of what moves to {partition.target}")
    if source != partition.leader:
        raise NotAllowedError(f"a move from {source} of what {partition.leader} leads")
    if target == source:
        raise NotAllowedError(f"a move to {target} of what is there")
    return partition._replace(target=target)


def cancelled(partition: Partition) -> Partition:
    """The partition where it is.

    Raises:
        NotAllowedError: it does not move.
    """
    if not partition.moves:
        raise NotAllowedError("a cancel of what does not move")
    return partition._replace(target=NOBODY)


def elected(
    partition: Partition, leader: int, epoch: int, *, may_leave: bool, rules: PartitionRules = ALL_RULES
) -> Partition:
    """The partition under a leader and an epoch; a move is over with this.

    Args:
        partition: as it was.
        leader: who leads from now on.
        epoch: under which leader epoch.
        may_leave: its streams are closed, or its leader so far has no rights any more.
        rules: which hold.

    Raises:
        NotAllowedError: the epoch does not rise with the leader, or the leader so far may still append.
    """
    if rules.epoch_rises and (
        epoch < partition.epoch or (epoch == partition.epoch and leader != partition.leader)
    ):
        raise NotAllowedError(
            f"leader epoch {epoch} of node {leader} after {partition.epoch} of node {partition.leader}"
        )
    is_away = partition.leader not in {NOBODY, leader}
    if rules.closed_before_election and is_away and not may_leave:
        raise NotAllowedError(
            f"node {leader} is elected at {epoch} while streams are open at node {partition.leader}"
        )
    return Partition(leader, epoch)
