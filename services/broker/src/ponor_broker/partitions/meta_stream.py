"""A partition's Meta stream: an append-only key-value store on a stream.

What lives here: replay, writes and self-compaction. What the values mean is known to their owners alone (`partition_state`). Every
entry is one stream record of count 1. Meta entries and data share one write-ahead log, in order: an entry that is durable was written
after everything it speaks of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ponor_partition.errors import PartitionCorruptError
from ponor_partition.meta_entry import MetaEntry, MetaKey, MetaValues, decode_entry, fold, fold_entry
from s3stream.records import StreamRecord

from ponor_broker.partitions.stream_port import PartitionStream
from ponor_broker.partitions.stream_reading import fetch

REPLAY_BYTES: Final = 1 << 20
"""Bytes per fetch while replaying."""
COMPACT_BYTES_MIN: Final = 64 << 10
"""Below this a Meta stream is never compacted."""
COMPACT_RATIO: Final = 4
"""Compacted when it holds this many times the bytes that a replay needs."""


@dataclass(slots=True)
class _Compaction:
    """A rewrite that is under way: once everything below `end_offset` is in objects, what is below `first_offset` may go."""

    first_offset: int
    end_offset: int


class MetaStream:
    """The newest value of every key, and where on the stream it stands."""

    def __init__(self, stream: PartitionStream) -> None:
        self._stream = stream
        self._values: MetaValues = {}
        self._first_offsets: dict[MetaKey, int] = {}  # where a replay of the key must begin
        self._bytes_on_stream = 0
        self._compaction: _Compaction | None = None

    @property
    def stream(self) -> PartitionStream:
        """The stream below."""
        return self._stream

    async def replay(self, first: Sequence[StreamRecord] = ()) -> MetaValues:
        """Read the stream from its start; the newest whole value of each key wins, changes gather behind it.

        Args:
            first: what the caller has read of it already, from its start on.

        Raises:
            PartitionCorruptError: an entry breaks the format.
        """
        offset = self._replay(first, self._stream.start_offset)
        while offset < self._stream.confirmed_offset:
            records = await fetch(self._stream, offset, REPLAY_BYTES)
            if not records:
                raise PartitionCorruptError(
                    f"meta stream {self._stream.stream_id}: nothing at {offset} below {self._stream.confirmed_offset}"
                )
            offset = self._replay(records, offset)
        return self._values

    def is_whole(self, records: Sequence[StreamRecord]) -> bool:
        """Whether the records read from the start reach the end: then `replay` of them waits for nothing."""
        end_offset = records[-1].end_offset if records else self._stream.start_offset
        return end_offset >= self._stream.confirmed_offset

    def _replay(self, records: Sequence[StreamRecord], offset: int) -> int:
        for record in records:
            where = f"meta stream {self._stream.stream_id}, offset {record.base_offset}"
            self._note(decode_entry(record.payload, where), record.base_offset, len(record.payload))
            offset = record.end_offset
        return offset

    def put(self, key: MetaKey, value: bytes) -> asyncio.Future[None]:
        """Replace what stands under a key. The future resolves when that is durable."""
        return self._append(MetaEntry(key, value))

    def change(self, key: MetaKey, value: bytes) -> asyncio.Future[None]:
        """Add a change to a key's value. The future resolves when that is durable."""
        return self._append(MetaEntry(key, value, is_change=True))

    def _append(self, entry: MetaEntry) -> asyncio.Future[None]:
        payload = entry.encode()
        offset = self._stream.next_offset
        durable = self._stream.append(payload, count=1, max_timestamp=-1)
        self._note(entry, offset, len(payload))
        return durable

    def _note(self, entry: MetaEntry, offset: int, size_bytes: int) -> None:
        fold_entry(self._values, entry)
        if not entry.is_change or entry.key not in self._first_offsets:
            self._first_offsets[entry.key] = offset
        self._bytes_on_stream += size_bytes

    @property
    def compaction_due(self) -> bool:
        """Whether most of the stream's bytes are of no use to a replay any more."""
        if self._compaction is not None or self._bytes_on_stream < COMPACT_BYTES_MIN:
            return False
        live = sum(value.size_bytes for value in self._values.values())
        return self._bytes_on_stream >= COMPACT_RATIO * live

    @property
    def wants_trim(self) -> bool:
        """Whether a rewrite waits for being in committed objects, so that what it replaced may go."""
        return self._compaction is not None

    @property
    def needed_from(self) -> int:
        """The offset below which a replay needs nothing."""
        return min(self._first_offsets.values(), default=self._stream.start_offset)

    def rewrite(self, snapshots: Mapping[MetaKey, bytes]) -> None:
        """Append the whole value of every key again, from its owner where it has one, as it is where not.

        A value is rewritten by one entry or not at all: a crash in the middle of a rewrite must not leave a whole value without its changes.
        So a key that nobody here knows and that has changes stays where it is, and nothing from it on is trimmed. The old entries stay until
        `trim_rewritten` finds the new ones in objects.
        """
        if not self._values:
            return
        entries = [entry for key in self._values if (entry := self._whole(key, snapshots)) is not None]
        self._check(entries)
        self._bytes_on_stream = 0
        for entry in entries:
            self._append(entry)
        self._compaction = _Compaction(min(self._first_offsets.values()), self._stream.next_offset)

    def _whole(self, key: MetaKey, snapshots: Mapping[MetaKey, bytes]) -> MetaEntry | None:
        if key in snapshots:
            return MetaEntry(key, snapshots[key])
        value = self._values[key]
        return None if value.whole is None or value.changes else MetaEntry(key, value.whole)

    def _check(self, entries: list[MetaEntry]) -> None:
        """A rewrite that loses a key would lose it for ever (AutoMQ PR 3056): every key is in it, or stays."""
        rewritten = fold(entries)
        for key, value in self._values.items():
            assert key in rewritten or value.changes, (
                f"meta stream {self._stream.stream_id}: the rewrite loses {key}"
            )

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
