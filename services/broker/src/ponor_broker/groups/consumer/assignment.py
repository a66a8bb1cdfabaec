"""Partitions of a member: its target, and its current assignment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

Partitions: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partitions by topic id (16 bytes), without empty sets."""
EpochedPartitions: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""For each partition, by topic id, the member epoch at which the member got it (KIP-1251); without empty
topics.
"""

NO_PARTITIONS: Final[Partitions] = {}
JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
STATIC_LEAVING_EPOCH: Final = -2
"""Member epoch of a static member that left for a short time and keeps its assignment."""


class MemberState(IntEnum):
    """State of a member's reconciliation; the values are those of Kafka's records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """What a member may use, and what it must revoke first.

    Attributes:
        epoch: the epoch of the target that the member has reached.
        previous_epoch: the epoch before; the member sends it if it did not receive the answer.
        assigned: partitions that the member may use.
        revoking: partitions that the member must revoke.
    """

    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: EpochedPartitions = field(default_factory=dict)
    revoking: EpochedPartitions = field(default_factory=dict)

    def has_reached(self, target_epoch: int) -> bool:
        """Return whether the member needs no further step."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def epoch_of(self, topic_id: bytes, partition: int) -> int | None:
        """Return the epoch at which the member got a partition; None if it does not have it."""
        for held in (self.assigned, self.revoking):
            epoch = held.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


NEW_MEMBER: Final = CurrentAssignment()


def partitions_of(rows: Iterable[tuple[bytes, Iterable[int]]]) -> Partitions:
    """Return the partitions of the rows of a request, which may repeat a topic."""
    found: dict[bytes, set[int]] = {}
    for topic_id, indexes in rows:
        found.setdefault(topic_id, set()).update(indexes)
    return {topic_id: frozenset(indexes) for topic_id, indexes in found.items() if indexes}


def plain(partitions: EpochedPartitions) -> dict[bytes, frozenset[int]]:
    """Return the partitions without their epochs."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in partitions.items()}


def united(first: EpochedPartitions, second: EpochedPartitions) -> EpochedPartitions:
    """Return the partitions of both."""
    if not second or not first:
        return first or second
    both = {topic_id: dict(epochs) for topic_id, epochs in first.items()}
    for topic_id, epochs in second.items():
        both.setdefault(topic_id, {}).update(epochs)
    return both


def intersects(owned: Partitions, partitions: EpochedPartitions) -> bool:
    """Return whether a partition is in both."""
    return any(not indexes.isdisjoint(partitions.get(topic_id, ())) for topic_id, indexes in owned.items())


def is_within(owned: Partitions, partitions: EpochedPartitions) -> bool:
    """Return whether each of the `owned` partitions is in `partitions`."""
    return all(indexes <= partitions.get(topic_id, {}).keys() for topic_id, indexes in owned.items())
