"""Replay of transactions in a log of `__consumer_offsets`: restores committed and pending offsets."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping
from itertools import repeat
from typing import Final, TypeAlias

from ponor_broker.groups.pending_offsets import PendingOffsets
from ponor_broker.groups.record_codec import Entry
from ponor_broker.groups.records import CommittedOffset, OffsetEntry, OffsetKey

PendingRow: TypeAlias = tuple[int, OffsetKey, CommittedOffset | None]
_ENDED_PER_STEP: Final = 200
"""Offsets to which a marker or a tombstone is applied in one step."""


class PendingReplay:
    """Puts the offsets of committed transactions into `entries`, which has the newest entry of each key."""

    def __init__(self, entries: MutableMapping[Hashable, Entry]) -> None:
        self._entries = entries
        self.pending: PendingOffsets[OffsetKey] = PendingOffsets()

    def add(self, producer_id: int, entry: Entry) -> None:
        """Note the commit of an offset. Transactions contain no other entries."""
        if isinstance(entry, OffsetEntry) and entry.value is not None:
            self.pending.add(producer_id, entry.key, entry.value)

    def outdate(self, entry: Entry) -> Iterator[None]:
        """Apply a commit or a tombstone that belongs to no transaction; yield once per removed offset."""
        if not isinstance(entry, OffsetEntry):
            return
        if entry.value is None:
            while count := self.pending.remove(entry.key, _ENDED_PER_STEP):
                yield from repeat(None, count)
        else:
            self.pending.outdate(entry.key)

    def end(self, producer_id: int, *, commits: bool) -> Iterator[None]:
        """Apply a marker in steps; yield once per offset."""
        while count := min(self.pending.count(producer_id), _ENDED_PER_STEP):
            for key, offset in self.pending.end(producer_id, commits=commits, count_max=count):
                self._entries[key] = OffsetEntry(key, offset)
            yield from repeat(None, count)
