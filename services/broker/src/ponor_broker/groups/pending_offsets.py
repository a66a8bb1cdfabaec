"""Offsets that were committed in transactions whose marker has not been applied yet. No I/O.

The caller applies changes in the order of the log. When a transaction commits, an offset becomes visible
unless the key's visible offset was written later. As in Kafka, an offset that can no longer become
visible keeps its partition unstable until the marker.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from ponor_broker.groups.records import CommittedOffset

K = TypeVar("K", bound=Hashable)

PENDING_BYTES: Final = 900
"""Memory of a pending offset without its metadata, rounded up."""


class _Pending(NamedTuple):
    """`number` orders pending offsets as in the log; `offset` is None if a newer one was visible at `add`."""

    number: int
    offset: CommittedOffset | None


class PendingOffsets(Generic[K]):
    """Pending offsets by key and producer."""

    def __init__(self) -> None:
        self._by_key: dict[K, dict[int, _Pending]] = {}
        self._by_producer: dict[int, dict[K, None]] = {}
        self._outdated: dict[K, int] = {}
        """`number` of the newest pending offset of a key that is older than its visible offset."""
        self._numbers = 0
        self._count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: K) -> bool:
        return key in self._by_key

    def keys(self) -> Collection[K]:
        """Return the keys with pending offsets."""
        return self._by_key.keys()

    def producers(self, key: K) -> Collection[int]:
        """Return the ids of the producers with a pending offset of a key."""
        return self._by_key.get(key, {}).keys()

    def of(self, key: K) -> Iterator[tuple[int, CommittedOffset | None]]:
        """Yield producer id and offset of the pending offsets of a key, in the order of the log; None as the
        offset if a newer one is visible.
        """
        outdated = self._outdated.get(key, 0)
        for producer_id, pending in self._by_key.get(key, {}).items():
            yield producer_id, pending.offset if pending.number > outdated else None

    def rows(self) -> Iterator[tuple[int, K, CommittedOffset | None]]:
        """Yield producer id, key and offset, in an order in which `add` restores this state. The order
        matters only within a key.
        """
        for key in self._by_key:
            for producer_id, offset in self.of(key):
                yield producer_id, key, offset

    def add(self, producer_id: int, key: K, offset: CommittedOffset | None) -> None:
        """Note an offset that a producer committed in its open transaction; it replaces an earlier one."""
        self._drop(producer_id, key)
        self._numbers += 1
        self._by_key.setdefault(key, {})[producer_id] = _Pending(self._numbers, offset)
        self._by_producer.setdefault(producer_id, {})[key] = None
        self._count += 1
        self.size_bytes += _size_bytes(offset)

    def outdate(self, key: K) -> None:
        """Note that an offset has become visible that is newer than all pending offsets of the key."""
        if key in self._by_key:
            self._outdated[key] = self._numbers

    def remove(self, key: K, count_max: int) -> int:
        """Remove up to `count_max` pending offsets of a key that was deleted; return their number."""
        removed = list(islice(self.producers(key), count_max))
        for producer_id in removed:
            self._drop(producer_id, key)
        return len(removed)

    def count(self, producer_id: int) -> int:
        """Return the number of pending offsets of a producer."""
        return len(self._by_producer.get(producer_id, ()))

    def end(
        self, producer_id: int, *, commits: bool, count_max: int | None = None
    ) -> list[tuple[K, CommittedOffset]]:
        """Apply a marker to all offsets of a producer, or to `count_max`; return the offsets now visible."""
        visible: list[tuple[K, CommittedOffset]] = []
        for key in list(islice(self._by_producer.get(producer_id, ()), count_max)):
            number, offset = self._by_key[key][producer_id]
            if commits and offset is not None and number > self._outdated.get(key, 0):
                visible.append((key, offset))
                self._outdated[key] = number
            self._drop(producer_id, key)
        return visible

    def forget(self, count: int) -> None:
        """Free up to `count` pending offsets."""
        # A dict skips deleted rows again whenever it is scanned, so it is scanned once.
        for producer_id in list(islice(self._by_producer, count)):
            ended = min(count, self.count(producer_id))
            self.end(producer_id, commits=False, count_max=ended)
            count -= ended

    def _drop(self, producer_id: int, key: K) -> None:
        of_key = self._by_key.get(key, {})
        pending = of_key.pop(producer_id, None)
        if pending is None:
            return
        self._count -= 1
        self.size_bytes -= _size_bytes(pending.offset)
        of_producer = self._by_producer[producer_id]
        del of_producer[key]
        if not of_key:
            del self._by_key[key]
            self._outdated.pop(key, None)
        if not of_producer:
            del self._by_producer[producer_id]


def pending_bytes(offsets: Iterable[CommittedOffset]) -> int:
    """Return the memory of pending offsets."""
    return sum(map(_size_bytes, offsets))


def _size_bytes(offset: CommittedOffset | None) -> int:
    return PENDING_BYTES + (0 if offset is None else len(offset.metadata))
