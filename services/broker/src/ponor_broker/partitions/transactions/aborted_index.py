"""The aborted-transaction index of one partition: the Txn stream, and its newest entries in memory.

Entries are in the order of their markers. An entry is appended directly after its marker, and so precedes
every checkpoint that covers the marker. If the storage refuses an entry, it stays in memory and is appended
before the next checkpoint.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, TypeAlias

from ponor_partition.errors import PartitionCorruptError
from ponor_partition.segment import TXN
from ponor_partition.txn_entry import TXN_ENTRY_BYTES, TxnEntry, decode_txn_entry
from s3stream.errors import AppendBackpressureError, OffsetOutOfRangeError, S3StreamError
from s3stream.records import StreamRecord

from ponor_broker.partitions.log.partition_log import PartitionLog
from ponor_broker.partitions.log.stream_port import fetch, observe

ENTRIES_MAX: Final = 1_000
"""Newest entries of a partition in memory; older ones are read from the stream."""
READ_BYTES: Final = 1_000 * TXN_ENTRY_BYTES
NO_TIMESTAMP: Final = -1

Aborted: TypeAlias = Sequence[tuple[int, int]]
"""Producer id and first offset of aborted transactions, as in an answer to Fetch."""


class AbortedIndex:
    """The index of one partition."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._newest: deque[TxnEntry] = deque()
        self._unwritten = 0  # number of entries at the end of `_newest` that are not on the stream yet
        self._complete_from = 0
        """Every entry with a marker at or above this offset is in memory."""

    @property
    def has_stream(self) -> bool:
        """Whether the Txn stream exists."""
        return TXN in self._log.streams

    @property
    def end_offset(self) -> int:
        """End of the Txn stream, including entries in flight; 0 without a stream."""
        stream = self._log.streams.get(TXN)
        return 0 if stream is None else stream.next_offset

    # Writes

    def check_room(self) -> None:
        """Check that another entry may be added.

        Raises:
            S3StreamError: the storage refused so many entries that no more may be kept in memory.
        """
        if self._unwritten >= ENTRIES_MAX:
            raise AppendBackpressureError(f"{self._unwritten} entries of the Txn stream are not written yet")

    def add(self, entry: TxnEntry) -> None:
        """Append the entry of a marker that was appended just now."""
        assert not self._newest or entry.last_offset > self._newest[-1].last_offset, (
            "the marker is not above the newest marker"
        )
        self._newest.append(entry)
        self._unwritten += 1
        try:
            self.write_all()
        except S3StreamError:
            return  # the next `add`, or the next checkpoint, retries

    def write_all(self) -> None:
        """Append the entries that the storage refused before.

        Raises:
            S3StreamError: the storage refused an entry again; no checkpoint may cover the entry's marker.
        """
        while self._unwritten:
            entry = self._newest[-self._unwritten]
            observe(self._log.streams[TXN].append(entry.encode(), count=1, max_timestamp=NO_TIMESTAMP))
            self._unwritten -= 1
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Remove the oldest entries above `ENTRIES_MAX`, except those that are not durable yet."""
        newest = self._newest
        first_at = self.end_offset - len(newest) + self._unwritten
        while len(newest) > ENTRIES_MAX and first_at < self._stored_end:
            self._complete_from = newest.popleft().last_offset + 1
            first_at += 1

    # Recovery

    async def recover(self, from_offset: int, replayed: Iterable[TxnEntry]) -> None:
        """Restore the state after an open, and append the entries that are missing on the stream.

        `replayed` has the entries of all markers at or above `from_offset`; the others are on the stream.

        Raises:
            S3StreamError: the stream cannot be read.
            PartitionCorruptError: the stream is missing, or contains a record that is not an entry.
        """
        self._newest = deque(replayed)
        if self._newest and not self.has_stream:
            raise PartitionCorruptError(
                f"the marker at offset {self._newest[0].last_offset} aborts a transaction, but"
                " there is no Txn stream"
            )
        self._complete_from = from_offset if self.end_offset else 0
        stored_to = -1
        if self._newest and self._stored_end > self._log.streams[TXN].start_offset:
            stored_to = (await self._entry(self._stored_end - 1)).last_offset
        self._unwritten = sum(entry.last_offset > stored_to for entry in self._newest)
        try:
            self.write_all()
        except S3StreamError:
            return  # the next checkpoint retries

    # Reads

    def find(self, start: int, end: int) -> Aborted | None:
        """Return the aborted transactions with records in the Kafka offsets [start, end); None if older
        entries must be read from the stream (`read`). `end` is at most the last stable offset.
        """
        if start < self._complete_from:
            return None
        newest = self._newest
        if not newest or newest[-1].last_offset < start:
            return ()
        first = bisect_left(newest, start, key=_last_offset)
        return _within(islice(newest, first, None), end)[0]

    async def read(self, start: int, end: int) -> Aborted:
        """As `find`, but read older entries from the stream.

        Raises:
            S3StreamError: the stream cannot be read.
            PartitionCorruptError: it contains a record that is not an entry.
        """
        while True:
            first = self._log.streams[TXN].start_offset if self.has_stream else 0
            try:
                return await self._read(start, end)
            except OffsetOutOfRangeError:
                if first == self._log.streams[TXN].start_offset:
                    raise
                # Retention trimmed entries during the search: search again.

    async def _read(self, start: int, end: int) -> Aborted:
        found: list[tuple[int, int]] = []
        at = await self._first_at_or_after(start) if start < self._complete_from else self._stored_end
        # `_complete_from` may rise during the loop. Entries that leave memory are durable, so the loop reads
        # them from the stream.
        while start < self._complete_from and at < self._stored_end:
            stream = self._log.streams[TXN]
            records = stream.fetch_cached(at, READ_BYTES) or await fetch(stream, at, READ_BYTES)
            some, is_all = _within(map(self._decode, records), end)
            found += some
            if is_all:
                return found
            at, start = records[-1].end_offset, self._decode(records[-1]).last_offset + 1
        rest = self.find(max(start, self._complete_from), end)
        assert rest is not None, "entries that are not on the stream are missing in memory"
        return [*found, *rest]

    @property
    def _stored_end(self) -> int:
        """End of the durable entries."""
        stream = self._log.streams.get(TXN)
        return 0 if stream is None else stream.confirmed_offset

    async def _first_at_or_after(self, offset: int) -> int:
        """Return the stream offset of the first durable entry whose marker is at or above a Kafka offset."""
        low, high = self._log.streams[TXN].start_offset, self._stored_end
        while low < high:
            middle = (low + high) // 2
            if (await self._entry(middle)).last_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    async def _entry(self, at: int) -> TxnEntry:
        stream = self._log.streams[TXN]
        return self._decode((stream.fetch_cached(at, 1) or await fetch(stream, at, 1))[0])

    def _decode(self, record: StreamRecord) -> TxnEntry:
        return decode_txn_entry(record.payload, f"txn stream {record.stream_id}, offset {record.base_offset}")


def _last_offset(entry: TxnEntry) -> int:
    return entry.last_offset


def _within(entries: Iterable[TxnEntry], end: int) -> tuple[list[tuple[int, int]], bool]:
    """Return the transactions that begin below `end`, and whether no later entry can begin below it."""
    found: list[tuple[int, int]] = []
    for entry in entries:
        if entry.first_offset < end:
            found.append((entry.producer_id, entry.first_offset))
        if entry.last_stable_offset >= end:
            return found, True
    return found, False
