"""A partition's Meta stream: an append-only key-value store on a stream.

Replay, writes and self-compaction. What the values mean is known to their owners alone (`partition_state`). Every entry is one stream record of count 1.
Meta entries and data share one write-ahead log, in order: an entry that is durable was written after everything it speaks of.

What a replay has to read is bounded: a key is written whole again when its changes outgrow its whole value (`wants_whole`), all keys together when the
stream holds several times their whole values (`compaction_due`). Both cost a constant number of bytes for each byte that is written otherwise.
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

from ponor_broker.partitions.log.stream_port import PartitionStream, observe
from ponor_broker.partitions.log.stream_reading import fetch

REPLAY_BYTES: Final = 1 << 20
"""Bytes per fetch while replaying."""
ENTRIES_PER_STEP: Final = 256
"""Entries of one step of a replay: a millisecond."""
CHANGES_BYTES_MAX: Final = 32 << 10
"""Changes of a key may have as many bytes as its whole value, or so many if that is smaller."""
COMPACT_BYTES_MIN: Final = 64 << 10
"""Below this a Meta stream is never compacted."""
COMPACT_RATIO: Final = 4
"""Compacted when it holds this many times the bytes of the whole values."""
ENTRY_HEAD_BYTES: Final = 4 << 10
"""Upper bound of what an entry contains besides rows: its key, versions and stream names."""
OWNED: Final = frozenset(
    (meta_entry.LOG, meta_entry.PARTITION, meta_entry.PRODUCER_SNAPSHOT, meta_entry.LEADER_EPOCHS)
)
"""Keys whose values live with their owners: their bytes are not kept here."""


class MetaEntryTooLargeError(S3StreamError):
    """The write-ahead log or the log cache is too small for an entry; the message names the settings. Nothing was written."""


@dataclass(slots=True)
class _Compaction:
    """A rewrite that is under way: once everything below `end_offset` is in objects, what is below `first_offset` may go."""

    first_offset: int
    end_offset: int


@dataclass(slots=True)
class _Extent:
    """What a key takes on the stream: where a replay of it must begin, bytes of its whole value and of the changes since."""

    first_offset: int
    whole_bytes: int = 0
    changes_bytes: int = 0


class MetaStream:
    """The newest value of every key, and where on the stream it stands."""

    def __init__(self, stream: PartitionStream) -> None:
        self._stream = stream
        self._unowned: MetaValues = {}  # of a later release
        self._extents: dict[MetaKey, _Extent] = {}
        self._bytes_on_stream = 0
        self._compaction: _Compaction | None = None

    @property
    def stream(self) -> PartitionStream:
        """The stream below."""
        return self._stream

    async def replay(self, first: Sequence[StreamRecord] = ()) -> MetaValues:
        """Read the stream from its start; the newest whole value of each key wins, changes gather behind it. Yields to the loop between steps.

        Args:
            first: what the caller has read of it already, from its start on.

        Raises:
            PartitionCorruptError: an entry breaks the format.
        """
        values: MetaValues = {}
        offset = await in_turns(self._replaying(values, first, self._stream.start_offset))
        while offset < self._stream.confirmed_offset:
            records = await fetch(self._stream, offset, REPLAY_BYTES)
            if not records:
                raise PartitionCorruptError(
                    f"meta stream {self._stream.stream_id}: nothing at {offset} below {self._stream.confirmed_offset}"
                )
            offset = await in_turns(self._replaying(values, records, offset))
        self._unowned = {key: value for key, value in values.items() if key not in OWNED}
        return values

    def is_whole(self, records: Sequence[StreamRecord]) -> bool:
        """Whether the records read from the start reach the end: then `replay` of them waits for no read."""
        end_offset = records[-1].end_offset if records else self._stream.start_offset
        return end_offset >= self._stream.confirmed_offset

    def _replaying(
        self, values: MetaValues, records: Sequence[StreamRecord], offset: int
    ) -> Generator[None, None, int]:
        for number, record in enumerate(records, 1):
            where = f"meta stream {self._stream.stream_id}, offset {record.base_offset}"
            entry = decode_entry(record.payload, where)
            fold_entry(values, entry)
            self._note(entry, record.base_offset, len(record.payload))
            offset = record.end_offset
            if number % ENTRIES_PER_STEP == 0:
                yield
        return offset

    @property
    def rows_bytes_max(self) -> int:
        """Upper bound of the rows in a value, which is written as one record of the stream."""
        return self._stream.payload_bytes_max - ENTRY_HEAD_BYTES

    def put(self, key: MetaKey, value: bytes) -> asyncio.Future[None]:
        """Replace what stands under a key. The future resolves when that is durable.

        Raises:
            S3StreamError: the stream did not take it.
        """
        return self._append(MetaEntry(key, value))

    def change(self, key: MetaKey, value: bytes) -> asyncio.Future[None]:
        """Add a change to a key's value. The future resolves when that is durable.

        Raises:
            S3StreamError: the stream did not take it.
        """
        return self._append(MetaEntry(key, value, is_change=True))

    def _append(self, entry: MetaEntry) -> asyncio.Future[None]:
        payload = entry.encode()
        offset = self._stream.next_offset
        try:
            durable = self._stream.append(payload, count=1, max_timestamp=-1)
        except ValueError as error:
            raise MetaEntryTooLargeError(
                f"meta stream {self._stream.stream_id}, {entry.key}: {error}"
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

    def wants_whole(self, key: MetaKey) -> bool:
        """Whether the next value of a key should be written whole: a replay would apply too many changes otherwise."""
        extent = self._extents.get(key)
        if extent is None or extent.whole_bytes == 0:
            return True
        return extent.changes_bytes >= max(extent.whole_bytes, CHANGES_BYTES_MAX)

    @property
    def compaction_due(self) -> bool:
        """Whether most of the stream's bytes are of no use to a replay any more, or only because nobody wrote them whole."""
        if self._compaction is not None or self._bytes_on_stream < COMPACT_BYTES_MIN:
            return False
        live = sum(
            extent.whole_bytes if key in OWNED else extent.whole_bytes + extent.changes_bytes
            for key, extent in self._extents.items()
        )
        return self._bytes_on_stream >= COMPACT_RATIO * live

    @property
    def wants_trim(self) -> bool:
        """Whether a rewrite waits for being in committed objects, so that what it replaced may go."""
        return self._compaction is not None

    @property
    def needed_from(self) -> int:
        """The offset below which a replay needs nothing."""
        return min(
            (extent.first_offset for extent in self._extents.values()), default=self._stream.start_offset
        )

    def rewrite(self, snapshots: Mapping[MetaKey, bytes]) -> None:
        """Append the whole value of every key again, from its owner where it has one, as it is where not.

        A value is rewritten by one entry or not at all: a crash in the middle of a rewrite must not leave a whole value without its changes.
        So a key that nobody here knows and that has changes stays where it is, and nothing from it on is trimmed. The old entries stay until
        `trim_rewritten` finds the new ones in objects.

        Raises:
            S3StreamError: the stream did not take all of it; what it took is valid.
        """
        if not self._extents:
            return
        entries = [entry for key in self._extents if (entry := self._whole(key, snapshots)) is not None]
        self._bytes_on_stream = 0
        for entry in entries:
            observe(self._append(entry))
        # A key that was not rewritten stays: its first offset is the smallest, and nothing from it on goes (AutoMQ PR 3056 lost one).
        self._compaction = _Compaction(self.needed_from, self._stream.next_offset)

    def _whole(self, key: MetaKey, snapshots: Mapping[MetaKey, bytes]) -> MetaEntry | None:
        if key in snapshots:
            return MetaEntry(key, snapshots[key])
        value = self._unowned.get(key)
        if value is None or value.whole is None or value.changes:
            return None
        return MetaEntry(key, value.whole)

    async def trim_rewritten(self) -> bool:
        """Drop what a rewrite replaced, once all of the rewrite lies in committed objects. Returns whether it did."""
        rewrite = self._compaction
        if rewrite is None or rewrite.end_offset > self._stream.committed_offset:
            return False
        await self._stream.trim(rewrite.first_offset)
        self._compaction = None
        return True

    async def close(self) -> None:
        """Close the stream; everything appended before is durable then."""
        await self._stream.close()
