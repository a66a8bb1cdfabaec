"""The committed offsets of one group, durable and in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from ponor_broker.groups.pending_offsets import PendingOffsets
from ponor_broker.groups.records import CommittedOffset

TopicPartition: TypeAlias = tuple[str, int]

OFFSET_BYTES: Final = 600
"""Memory of a commit without its metadata: measured, rounded up."""


class OffsetTable:
    """Only durable commits can be read. The table also counts commits in flight and keeps commits that are
    pending in transactions, so that a deletion includes them.
    """

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._in_flight: Counter[TopicPartition] = Counter()
        self._pending: PendingOffsets[TopicPartition] = PendingOffsets()
        self._committed_bytes = 0

    def __len__(self) -> int:
        return len(self._committed)

    @property
    def rows(self) -> int:
        """Number of durable and pending commits."""
        return len(self._committed) + len(self._pending)

    @property
    def size_bytes(self) -> int:
        """Memory of the durable commits, for the broker's budget."""
        return self._committed_bytes + self._pending.size_bytes

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        """Return the newest durable commit."""
        return self._committed.get(partition)

    def items(self) -> list[tuple[TopicPartition, CommittedOffset]]:
        """Return a copy of all durable commits, in order of first commit."""
        return list(self._committed.items())

    @property
    def is_unused(self) -> bool:
        """Whether nothing is committed, in flight or pending."""
        return not self._committed and not self._in_flight and not self._pending

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions with durable commits."""
        return list(self._committed)

    def is_in_flight(self, partition: TopicPartition) -> bool:
        """Return whether a commit is in flight, or pending in a transaction."""
        return partition in self._in_flight or partition in self._pending

    def growth_bytes(self, commits: Mapping[TopicPartition, CommittedOffset]) -> int:
        """Return the additional memory that these commits need."""
        return sum(
            _size_bytes(committed) - _size_bytes(self._committed.get(partition))
            for partition, committed in commits.items()
        )

    # --- transactions

    def is_pending(self, partition: TopicPartition) -> bool:
        """Return whether a commit is pending in a transaction."""
        return partition in self._pending

    def pending(self) -> Iterator[tuple[int, TopicPartition, CommittedOffset | None]]:
        """Yield producer id, partition and offset of every pending commit; None as the offset if a newer
        offset of the partition is visible.
        """
        return self._pending.rows()

    def pending_partitions(self) -> list[TopicPartition]:
        """Return the partitions with pending commits."""
        return list(self._pending.keys())

    def pending_of(self, partition: TopicPartition) -> Iterator[tuple[int, CommittedOffset | None]]:
        """Yield producer id and offset of a partition's pending commits."""
        return self._pending.of(partition)

    def pending_producers(self, partition: TopicPartition) -> Collection[int]:
        """Return the ids of the producers with a pending commit."""
        return self._pending.producers(partition)

    def put_pending(
        self, producer_id: int, partition: TopicPartition, committed: CommittedOffset | None
    ) -> None:
        """Apply one record of a transaction."""
        self._pending.add(producer_id, partition, committed)

    def remove_pending(self, partition: TopicPartition, count_max: int) -> int:
        """Remove up to `count_max` pending commits of a partition; return their number."""
        return self._pending.remove(partition, count_max)

    def end_transaction(self, producer_id: int, *, commits: bool, count_max: int | None = None) -> int:
        """Apply a marker to all pending commits of a producer, or to `count_max`; return their number."""
        count = self._pending.count(producer_id)
        for partition, committed in self._pending.end(producer_id, commits=commits, count_max=count_max):
            self._put(partition, committed)
        return count - self._pending.count(producer_id)

    # --- outside of transactions

    def began(self, partitions: Iterable[TopicPartition]) -> None:
        """Note commits that are about to be appended to the log."""
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
        """Apply one record of the log; None removes the commit, whose pending commits must be removed before.
        All pending commits are older.
        """
        if committed is not None:
            self._pending.outdate(partition)
        self._put(partition, committed)

    def _put(self, partition: TopicPartition, committed: CommittedOffset | None) -> None:
        self._committed_bytes += _size_bytes(committed) - _size_bytes(self._committed.get(partition))
        if committed is None:
            self._committed.pop(partition, None)
        else:
            self._committed[partition] = committed

    def forget(self, count: int) -> bool:
        """Free up to `count` commits of a removed group; return whether any remain."""
        durable = min(count, len(self._committed))
        for _ in range(durable):
            self._committed.popitem()
        self._pending.forget(count - durable)
        return self.rows > 0

    def to_tombstone(self) -> tuple[TopicPartition, ...]:
        """Return every partition that needs a tombstone when the group is deleted."""
        return tuple(dict.fromkeys([*self._committed, *self._in_flight, *self._pending.keys()]))

    def is_held_only_by(self, partitions: Collection[TopicPartition]) -> bool:
        """Return whether the table contains nothing but the durable commits of these partitions."""
        is_settled = not self._in_flight and not self._pending
        return is_settled and len(self._committed) == len(partitions)


def _size_bytes(committed: CommittedOffset | None) -> int:
    return 0 if committed is None else OFFSET_BYTES + len(committed.metadata)
