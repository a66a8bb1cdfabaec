"""The committed offsets of one group, durable and in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

from ponor_broker.groups.records import CommittedOffset

TopicPartition: TypeAlias = tuple[str, int]

OFFSET_BYTES: Final = 600
"""Memory of a commit without its metadata: measured, rounded up."""


class OffsetTable:
    """Only durable commits can be read. Commits in flight are counted, so that a deletion includes them."""

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._in_flight: Counter[TopicPartition] = Counter()
        self.size_bytes = 0
        """Memory of the durable commits, for the broker's budget."""

    def __len__(self) -> int:
        return len(self._committed)

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        """Return the newest durable commit."""
        return self._committed.get(partition)

    def items(self) -> list[tuple[TopicPartition, CommittedOffset]]:
        """Return a copy of all durable commits, in order of first commit."""
        return list(self._committed.items())

    @property
    def is_unused(self) -> bool:
        """Whether nothing is committed or in flight."""
        return not self._committed and not self._in_flight

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions with durable commits."""
        return list(self._committed)

    def is_in_flight(self, partition: TopicPartition) -> bool:
        """Return whether a commit is in flight."""
        return partition in self._in_flight

    def growth_bytes(self, commits: Mapping[TopicPartition, CommittedOffset]) -> int:
        """Return the additional memory that these commits need."""
        return sum(
            _size_bytes(committed) - _size_bytes(self._committed.get(partition))
            for partition, committed in commits.items()
        )

    def began(self, partitions: Iterable[TopicPartition]) -> None:
        """Note commits that were given to the log."""
        self._in_flight.update(list(partitions))  # Counter treats a mapping as counts

    def failed(self, partitions: Iterable[TopicPartition]) -> None:
        """Note commits whose write failed."""
        for partition in partitions:
            self._in_flight[partition] -= 1
            assert self._in_flight[partition] >= 0
            if not self._in_flight[partition]:
                del self._in_flight[partition]

    def succeeded(self, commits: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Note durable commits, in log order."""
        self.failed(commits)
        for partition, committed in commits.items():
            self.restore(partition, committed)

    def restore(self, partition: TopicPartition, committed: CommittedOffset | None) -> None:
        """Apply one record of the log; None removes."""
        self.size_bytes += _size_bytes(committed) - _size_bytes(self._committed.get(partition))
        if committed is None:
            self._committed.pop(partition, None)
        else:
            self._committed[partition] = committed

    def forget(self, count: int) -> bool:
        """Free the memory of `count` durable commits, of a removed group; return whether any remain."""
        for _ in range(min(count, len(self._committed))):
            self._committed.popitem()
        return bool(self._committed)

    def to_bury(self) -> tuple[TopicPartition, ...]:
        """Return every partition that needs a tombstone when the group is deleted."""
        return tuple(dict.fromkeys([*self._committed, *self._in_flight]))

    def is_held_only_by(self, partitions: Collection[TopicPartition]) -> bool:
        """Return whether nothing would remain without these partitions."""
        return not self._in_flight and len(self._committed) == len(partitions)


def _size_bytes(committed: CommittedOffset | None) -> int:
    return 0 if committed is None else OFFSET_BYTES + len(committed.metadata)
