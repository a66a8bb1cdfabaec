"""Partitions: which node leads a partition, and how the partition moves to another broker.

These are the controller's rules. A model may disable each rule by name. The caller uses the rules of
`streams` to track whether the streams of a partition are closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from ponor_cluster_simulation.protocols.streams import NO_NODE, NotAllowedError


class Partition(NamedTuple):
    """A partition. While it moves, `target` is the broker that will lead it, and `leader` still leads it."""

    leader: int = NO_NODE
    epoch: int = -1
    target: int = NO_NODE

    @property
    def moves(self) -> bool:
        """Whether it is moving."""
        return self.target != NO_NODE


@dataclass(frozen=True, slots=True)
class PartitionRules:
    """The rules; a model may disable each.

    Attributes:
        epoch_rises: the epoch of an election is above all earlier ones.
        closed_before_election: another leader is elected only when the streams are closed or the
            leader was fenced.
        one_move_at_a_time: a moving partition is not moved elsewhere.
    """

    epoch_rises: bool = True
    closed_before_election: bool = True
    one_move_at_a_time: bool = True


ALL_RULES: Final = PartitionRules()


def begun(partition: Partition, source: int, target: int, rules: PartitionRules = ALL_RULES) -> Partition:
    """The partition while it moves.

    Raises:
        NotAllowedError: it already moves, the source does not lead it, or the target is the source.
    """
    if rules.one_move_at_a_time and partition.moves:
        raise NotAllowedError(
            f"a move to {target} begins, but the partition already moves to {partition.target}"
        )
    if source != partition.leader:
        raise NotAllowedError(f"a move from {source} begins, but {partition.leader} leads the partition")
    if target == source:
        raise NotAllowedError(f"a move to {target} begins, but {target} already leads the partition")
    return partition._replace(target=target)


def cancelled(partition: Partition) -> Partition:
    """The partition after a cancelled move.

    Raises:
        NotAllowedError: it does not move.
    """
    if not partition.moves:
        raise NotAllowedError("a move is cancelled, but the partition does not move")
    return partition._replace(target=NO_NODE)


def elected(
    partition: Partition, leader: int, epoch: int, *, may_leave: bool, rules: PartitionRules = ALL_RULES
) -> Partition:
    """The partition after an election, which also ends a move. `may_leave`: the streams are closed, or the
    former leader has no rights.

    Raises:
        NotAllowedError: the epoch does not rise with the leader, or the former leader may still append.
    """
    if rules.epoch_rises and (
        epoch < partition.epoch or (epoch == partition.epoch and leader != partition.leader)
    ):
        raise NotAllowedError(
            f"leader epoch {epoch} of node {leader} follows epoch {partition.epoch} of node"
            f" {partition.leader}"
        )
    is_away = partition.leader not in {NO_NODE, leader}
    if rules.closed_before_election and is_away and not may_leave:
        raise NotAllowedError(
            f"node {leader} is elected at epoch {epoch} while node {partition.leader} holds streams open"
        )
    return Partition(leader, epoch)
