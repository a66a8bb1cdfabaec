"""A partition's Meta stream: an append-only key-value store on a stream.

Implements replay, writes and compaction; the owners of the values decode them. Every entry is one stream
record of count 1. Meta entries and data share one write-ahead log, in order. So if an entry is durable, all
data that it refers to is durable too.

The bytes that a replay reads are bounded: the owner writes the whole value of a key when the changes outgrow
the value (`needs_whole`), and rewrites all keys when the stream holds several times the size of all whole
values (`compaction_due`). The cost of both is proportional to the cost of the other writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ponor_partition import meta_entry
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.meta_entry import MetaEntry, MetaKey, MetaValues, decode_entry, fold_entry
from ponor_runtime.turns import in_turns
from s3stream.errors import S3StreamError
from s3stream.records import StreamRecord

from ponor_broker.partitions.log.stream_port import PartitionStream, fetch, observe

REPLAY_BYTES: Final = 1 << 20
"""Bytes per read of a replay."""
ENTRIES_PER_STEP: Final = 256
"""Entries of one replay step: about a millisecond."""
CHANGES_BYTES_MAX: Final = 32 << 10
"""The changes of a key may have as many bytes as its whole value, but at least this many."""
COMPACT_BYTES_MIN: Final = 64 << 10
"""A smaller Meta stream is never compacted."""
COMPACT_RATIO: Final = 4
"""The stream is compacted when it holds this many times the bytes of the whole values."""
ENTRY_HEAD_BYTES: Final = 4 << 10
"""Upper bound of an entry without its rows: key, versions and stream names."""
OWNED: Final = frozenset(
    (meta_entry.LOG, meta_entry.PARTITION, meta_entry.PRODUCER_SNAPSHOT, meta_entry.LEADER_EPOCHS)
)
"""Keys whose values this release keeps in memory and can write whole."""


class MetaEntryTooLargeError(S3StreamError):
    """The write-ahead log or the log cache is too small for an entry; the message names the
    settings. Nothing was written.
    """


@dataclass(slots=True)
class _Compaction:
    """A rewrite in progress: when everything below `end_offset` is in objects, the stream may be
    trimmed to `first_offset`.
    """

    first_offset: int
    end_offset: int


@dataclass(slots=True)
class _Extent:
    """Space of a key on the stream: the offset at which its replay must start, the bytes of its whole value,
    and the bytes of all later changes.
    """

    first_offset: int
    whole_bytes: int = 0
    changes_bytes: int = 0


class MetaStream:
    """The newest value of every key, and its position on the stream."""

    def __init__(self, stream: PartitionStream) -> None:
        self.stream = stream
        self._unowned: MetaValues = {}  # keys of a later release
        self._extents: dict[MetaKey, _Extent] = {}
        self._bytes_on_stream = 0
        self._compaction: _Compaction | None = None

    async def replay(self, first: Sequence[StreamRecord] = ()) -> MetaValues:
        """Read the stream from its start; return the newest whole value of each key, and the changes after
        it. Yield to the event loop between steps.

        Args:
            first: records that the caller has read already, from the start of the stream.

        Raises:
            PartitionCorruptError: an entry violates the format.
        """
        values: MetaValues = {}
        offset = await in_turns(self._replaying(values, first, self.stream.start_offset))
        while offset < self.stream.confirmed_offset:
            records = await fetch(self.stream, offset, REPLAY_BYTES)
            if not records:
                raise PartitionCorruptError(
                    f"meta stream {self.stream.stream_id}: no entry at offset {offset}, which is below the"
                    f" confirmed offset {self.stream.confirmed_offset}"
                )
            offset = await in_turns(self._replaying(values, records, offset))
        self._unowned = {key: value for key, value in values.items() if key not in OWNED}
        return values

    def is_whole(self, records: Sequence[StreamRecord]) -> bool:
        """Return whether records that were read from the start reach the end, so that `replay` of them reads
        no more.
        """
        end_offset = records[-1].end_offset if records else self.stream.start_offset
        return end_offset >= self.stream.confirmed_offset

    def _replaying(
        self, values: MetaValues, records: Sequence[StreamRecord], offset: int
    ) -> Generator[None, None, int]:
        for number, record in enumerate(records, 1):
            where = f"meta stream {self.stream.stream_id}, offset {record.base_offset}"
            entry = decode_entry(record.payload, where)
            fold_entry(values, entry)
            self._note(entry, record.base_offset, len(record.payload))
            offset = record.end_offset
            if number % ENTRIES_PER_STEP == 0:
                yield
        return offset

    @property
    def rows_bytes_max(self) -> int:
        """Upper bound of the rows in a value, which is written as one stream record."""
        return self.stream.payload_bytes_max - ENTRY_HEAD_BYTES

    def put(self, key: MetaKey, value: bytes) -> asyncio.Future[None]:
        """Replace a key's value. The future resolves when that is durable.

        Raises:
            S3StreamError: the stream refused the entry.
        """
        return self._append(MetaEntry(key, value))

    def change(self, key: MetaKey, value: bytes) -> asyncio.Future[None]:
        """Add a change to a key's value. The future resolves when that is durable.

        Raises:
            S3StreamError: the stream refused the entry.
        """
        return self._append(MetaEntry(key, value, is_change=True))

    def _append(self, entry: MetaEntry) -> asyncio.Future[None]:
        payload = entry.encode()
        offset = self.stream.next_offset
        try:
            durable = self.stream.append(payload, count=1, max_timestamp=-1)
        except ValueError as error:
            raise MetaEntryTooLargeError(
                f"meta stream {self.stream.stream_id}, {entry.key}: {error}"
            ) from error
        if entry.key not in OWNED:
            fold_entry(self._unowned, entry)
        self._note(entry, offset, len(payload))
        return durable

    def _note(self, entry: MetaEntry, offset: int, size_bytes: int) -> None:
        extent = self._extents.get(entry.key)
        if extent is None or not entry.is_change:
            extent = self._extents[entry.key] = _Extent(offset)
        if entry.is_change:
            extent.changes_bytes += size_bytes
        else:
            extent.whole_bytes = size_bytes
        self._bytes_on_stream += size_bytes

    def needs_whole(self, key: MetaKey) -> bool:
        """Return whether the next write of a key must be its whole value, because a replay would otherwise
        apply too many changes.
        """
        extent = self._extents.get(key)
        if extent is None or extent.whole_bytes == 0:
            return True
        return extent.changes_bytes >= max(extent.whole_bytes, CHANGES_BYTES_MAX)

    @property
    def compaction_due(self) -> bool:
        """Whether most bytes of the stream are obsolete, or can be replaced by whole values."""
        if self._compaction is not None or self._bytes_on_stream < COMPACT_BYTES_MIN:
            return False
        live = sum(
            extent.whole_bytes if key in OWNED else extent.whole_bytes + extent.changes_bytes
            for key, extent in self._extents.items()
        )
        return self._bytes_on_stream >= COMPACT_RATIO * live

    @property
    def needs_trim(self) -> bool:
        """Whether entries that a rewrite replaced have not been trimmed yet."""
        return self._compaction is not None

    @property
    def needed_from(self) -> int:
        """The lowest offset that a replay needs."""
        return min(
            (extent.first_offset for extent in self._extents.values()), default=self.stream.start_offset
        )

    def rewrite(self, snapshots: Mapping[MetaKey, bytes]) -> None:
        """Append the whole value of every key: from `snapshots`, or for a key of a later release the stored
        value.

        A value is rewritten as one entry or not at all, because a crash within a rewrite must not leave a
        whole value without its changes. So an unknown key with changes is not rewritten, and its entries and
        all later ones stay. The old entries stay until `trim_rewritten` finds the new ones in objects.

        Raises:
            S3StreamError: the stream refused an entry; the entries before it are valid.
        """
        if not self._extents:
            return
        entries = [entry for key in self._extents if (entry := self._whole(key, snapshots)) is not None]
        self._bytes_on_stream = 0
        for entry in entries:
            observe(self._append(entry))
        # The first offset of a key that was not rewritten is then the smallest, so its entries are not
        # trimmed (AutoMQ PR 3056 fixed such a loss).
        self._compaction = _Compaction(self.needed_from, self.stream.next_offset)

    def _whole(self, key: MetaKey, snapshots: Mapping[MetaKey, bytes]) -> MetaEntry | None:
        if key in snapshots:
            return MetaEntry(key, snapshots[key])
        value = self._unowned.get(key)
        if value is None or value.whole is None or value.changes:
            return None
        return MetaEntry(key, value.whole)

    async def trim_rewritten(self) -> bool:
        """Trim the entries that a rewrite replaced, if all of the rewrite is in committed objects; return
        whether they were trimmed.
        """
        rewrite = self._compaction
        if rewrite is None or rewrite.end_offset > self.stream.committed_offset:
            return False
        await self.stream.trim(rewrite.first_offset)
        self._compaction = None
        return True

    async def close(self) -> None:
        """Close the stream; everything appended before is then durable."""
        await self.stream.close()
