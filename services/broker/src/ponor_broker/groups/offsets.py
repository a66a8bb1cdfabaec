"""The committed offsets of one group: what is durable, and what is on its way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

from ponor_broker.groups.records import CommittedOffset

TopicPartition: TypeAlias = tuple[str, int]

OFFSET_BYTES: Final = 600
"""What a commit takes in memory beside its metadata: measured, rounded up."""


class OffsetTable:
    """Only durable commits can be read. Commits on their way are counted, so that a deletion covers them too."""

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._in_flight: Counter[TopicPartition] = Counter()
        self.size_bytes = 0
        """Memory that the durable commits take, for the broker's budget."""

    def __len__(self) -> int:
        return len(self._committed)

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        """The newest durable commit."""
        return self._committed.get(partition)

    def items(self) -> list[tuple[TopicPartition, CommittedOffset]]:
        """A copy of everything durable, in order of first commit."""
        return list(self._committed.items())

    @property
    def is_unused(self) -> bool:
        """Nothing is committed and nothing is on its way."""
        return not self._committed and not self._in_flight

    def partitions(self) -> list[TopicPartition]:
        """Where something durable is committed."""
        return list(self._committed)

    def is_in_flight(self, partition: TopicPartition) -> bool:
        """Is a commit on its way?"""
        return partition in self._in_flight

    def growth_bytes(self, commits: Mapping[TopicPartition, CommittedOffset]) -> int:
        """How much more memory these commits would take."""
        return sum(
            _size_bytes(committed) - _size_bytes(self._committed.get(partition))
            for partition, committed in commits.items()
        )

    def began(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits were handed to the log."""
        self._in_flight.update(list(partitions))  # a mapping would be taken for counts

    def failed(self, partitions: Iterable[TopicPartition]) -> None:
        """They will not become durable, as far as is known."""
        for partition in partitions:
            self._in_flight[partition] -= 1
            assert self._in_flight[partition] >= 0
            if not self._in_flight[partition]:
                del self._in_flight[partition]

    def succeeded(self, commits: Mapping[TopicPartition, CommittedOffset]) -> None:
        """They are durable; called in the order of the log."""
        self.failed(commits)
        for partition, committed in commits.items():
            self.restore(partition, committed)

    def restore(self, partition: TopicPartition, committed: CommittedOffset | None) -> None:
        """Take one record of the log over; None removes."""
        self.size_bytes += _size_bytes(committed) - _size_bytes(self._committed.get(partition))
        if committed is None:
            self._committed.pop(partition, None)
        else:
            self._committed[partition] = committed

    def forget(self, count: int) -> bool:
        """Free the memory of so many durable commits, of a group that is not held here any more. Returns whether any is left."""
        for _ in range(min(count, len(self._committed))):
            self._committed.popitem()
        return bool(self._committed)

    def to_bury(self) -> tuple[TopicPartition, ...]:
        """Every partition that needs a tombstone when the group goes."""
        return tuple(dict.fromkeys([*self._committed, *self._in_flight]))

    def is_held_only_by(self, partitions: Collection[TopicPartition]) -> bool:
        """Would nothing be left without these?"""
        return not self._in_flight and len(self._committed) == len(partitions)


def _size_bytes(committed: CommittedOffset | None) -> int:
    return 0 if committed is None else OFFSET_BYTES + len(committed.metadata)
