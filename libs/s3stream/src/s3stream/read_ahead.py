"""Read-ahead: claims blocks in the block cache that a sequential reader will need next. A claimed block
stays cached until its reader has used it or loses the claim.

A *reader* is a position in a stream: the offset at which its last read ended. A read that begins there
continues the reader; any other read starts a new one. The first read of a reader claims only the blocks that
it fetched and did not use. The window is the number of blocks to claim ahead. Each further read doubles it,
up to `blocks_max` and the reader's share of the cache's memory for claims. Blocks are requested in large
runs: together with a GET that a read needs anyway, or when half of the window is used. An idle reader loses
its claims after a while, or when other claims need the memory.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamId
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.telemetry import Telemetry

from s3stream.cache.block_cache import BlockCache
from s3stream.cache.index_cache import ObjectIndexCache
from s3stream.errors import S3StreamError
from s3stream.objects.block import DataBlock, memory_bytes_of
from s3stream.objects.format import BlockEntry
from s3stream.objects.keys import object_key
from s3stream.ports import ObjectPiece

READERS_MAX: Final = 1_024
IDLE_MS_MAX: Final = 60_000
"""Idle time after which a reader's claims are released."""
IDLE_MS_UNDER_PRESSURE: Final = 5_000
"""Idle time after which claims are released while other readers find no room for theirs."""

_Place: TypeAlias = tuple[StreamId, int]


class PlannedBlock(NamedTuple):
    """A block of the stream, and its object."""

    key: str
    entry: BlockEntry


ReadBlock: TypeAlias = tuple[str, DataBlock]
"""Object key and block."""


class _Reader:
    """One sequential reader and its claims (`ahead`)."""

    __slots__ = ("ahead", "extending", "used_ns", "window")

    def __init__(self) -> None:
        self.ahead: list[PlannedBlock] = []
        self.window = 0
        self.used_ns = 0
        self.extending: asyncio.Task[None] | None = None


class ReadAhead:
    """Read-ahead of all readers. `blocks_max` 0 disables it."""

    def __init__(
        self,
        blocks: BlockCache,
        indexes: ObjectIndexCache,
        clock: Clock,
        telemetry: Telemetry,
        *,
        blocks_max: int,
        readers_max: int = READERS_MAX,
    ) -> None:
        self._blocks = blocks
        self._indexes = indexes
        self._clock = clock
        self._blocks_max: Final = blocks_max
        self._readers_max: Final = readers_max
        self._readers: OrderedDict[_Place, _Reader] = OrderedDict()  # least recently used first
        self._used = telemetry.counter("ponor_read_ahead_blocks_total", result="used")
        self._dropped = telemetry.counter("ponor_read_ahead_blocks_total", result="dropped")

    def advanced(
        self,
        stream_id: StreamId,
        start_offset: int,
        next_offset: int,
        end_offset: int,
        *,
        read: Iterable[ReadBlock],
        pieces: Sequence[ObjectPiece],
    ) -> None:
        """Record a read from `start_offset` to `next_offset`.

        Args:
            stream_id: the stream that was read.
            start_offset: start of the read.
            next_offset: end of the read.
            end_offset: end of the stream's data in objects.
            read: blocks that the read used.
            pieces: the objects that hold the offsets after the read, as far as the read index has returned
                them.
        """
        if self._blocks_max == 0:
            return
        now_ns = self._clock.monotonic_ns()
        self._expire(now_ns, IDLE_MS_MAX)
        reader = self._readers.pop((stream_id, start_offset), None)
        if reader is None:
            reader = _Reader()
        else:
            reader.window = self._next_window(reader)
        self._release_passed(reader, next_offset)
        self._claim_unused(reader, read, next_offset)
        reader.used_ns = now_ns
        reader = self._put((stream_id, next_offset), reader)
        if next_offset < end_offset and 2 * len(reader.ahead) <= reader.window and reader.extending is None:
            self._extend_soon(reader, stream_id, next_offset, end_offset, pieces)

    def with_read(
        self,
        stream_id: StreamId,
        start_offset: int,
        key: str,
        needed: Sequence[BlockEntry],
        rest: Sequence[BlockEntry],
    ) -> Sequence[BlockEntry]:
        """Return the `rest` blocks that a read should fetch together with the blocks it needs.
        Empty if the read does not continue a reader, or needs no GET of this object.

        When the read ends, `advanced` claims the fetched blocks that the read did not use.

        Args:
            stream_id: the stream to read.
            start_offset: start of the read.
            key: the object.
            needed: the last blocks that the read needs.
            rest: the blocks after them in the same object.
        """
        reader = self._readers.get((stream_id, start_offset))
        if reader is None or not needed or self._blocks.knows(key, needed[-1]):
            return ()
        missing = [entry for entry in needed if not self._blocks.knows(key, entry)]
        # Blocks briefly take twice their memory while they are copied out of a response. With
        # little room, readers would evict each other's claims.
        room_bytes = self._share_bytes // 2 - sum(map(memory_bytes_of, missing))
        allowed = rest[: _fitting(rest[: self._next_window(reader)], room_bytes)]
        end = missing[0].position + self._blocks.run_bytes_max
        return [entry for entry in allowed if entry.position + entry.size_bytes <= end]

    def _next_window(self, reader: _Reader) -> int:
        return min(max(2 * reader.window, 1), self._blocks_max)

    def _claim_unused(self, reader: _Reader, read: Iterable[ReadBlock], next_offset: int) -> None:
        claimed = {(planned.key, planned.entry.position) for planned in reader.ahead}
        for key, block in read:
            entry = block.entry
            if entry.end_offset <= next_offset or (key, entry.position) in claimed:
                continue
            if self._blocks.claim_read(key, block):
                reader.ahead.append(PlannedBlock(key, entry))

    def _release_passed(self, reader: _Reader, next_offset: int) -> None:
        passed = [planned for planned in reader.ahead if planned.entry.end_offset <= next_offset]
        if passed:
            reader.ahead = [planned for planned in reader.ahead if planned.entry.end_offset > next_offset]
            self._used.add(len(passed))
            for planned in passed:
                self._blocks.unclaim(planned.key, planned.entry)

    def _put(self, place: _Place, reader: _Reader) -> _Reader:
        """Store and return the reader, or keep the one already at this position if it has more claims."""
        other = self._readers.pop(place, None)
        if other is not None and len(other.ahead) > len(reader.ahead):
            reader, other = other, reader  # two readers met and are merged
        if other is not None:
            self._drop(other)
        self._readers[place] = reader
        while len(self._readers) > self._readers_max:
            self._drop(self._readers.popitem(last=False)[1])
        return reader

    # Extending the claims

    def _extend_soon(
        self,
        reader: _Reader,
        stream_id: StreamId,
        next_offset: int,
        end_offset: int,
        pieces: Sequence[ObjectPiece],
    ) -> None:
        task = asyncio.create_task(
            self._extend(reader, stream_id, next_offset, end_offset, pieces),
            name=f"read ahead of stream {stream_id} at {next_offset}",
        )
        reader.extending = task

        def ended(done: asyncio.Task[None]) -> None:
            reader.extending = None
            if not done.cancelled() and (error := done.exception()) is not None:
                # Errors of read-ahead are reported to the reader that needs the block.
                assert isinstance(error, S3StreamError | ObjectStoreError), repr(error)

        task.add_done_callback(ended)

    async def _extend(
        self,
        reader: _Reader,
        stream_id: StreamId,
        next_offset: int,
        end_offset: int,
        pieces: Sequence[ObjectPiece],
    ) -> None:
        from_offset = max([next_offset, *(planned.entry.end_offset for planned in reader.ahead)])
        for piece in pieces:
            if piece.end_offset <= from_offset:
                continue
            key = object_key(piece.namespace, piece.object_id)
            index = await self._indexes.open(key, piece.size_bytes, piece.range_count)
            until = min(piece.end_offset, end_offset)
            entries = index.blocks_of(stream_id, from_offset, until)
            allowed = entries[: self._allowance(reader, entries)]
            taken = self._claim(key, allowed)
            reader.ahead.extend(PlannedBlock(key, entry) for entry in allowed[:taken])
            if taken < len(entries):
                return
            from_offset = until

    @property
    def _share_bytes(self) -> int:
        """Bytes that one reader may claim."""
        return self._blocks.claims_bytes_max // max(len(self._readers), 1)

    def _allowance(self, reader: _Reader, entries: Sequence[BlockEntry]) -> int:
        """Return how many more blocks the reader may claim, up to its window and its share of the room."""
        room_bytes = self._share_bytes - sum(memory_bytes_of(planned.entry) for planned in reader.ahead)
        return _fitting(entries[: max(reader.window - len(reader.ahead), 0)], room_bytes)

    def _claim(self, key: str, entries: Sequence[BlockEntry]) -> int:
        taken = self._blocks.claim(key, entries)
        if taken < len(entries) and self._expire(self._clock.monotonic_ns(), IDLE_MS_UNDER_PRESSURE):
            taken += self._blocks.claim(key, entries[taken:])
        return taken

    # Giving up

    def _expire(self, now_ns: int, idle_ms_max: int) -> bool:
        """Drop readers that were idle for this long; return whether there were any."""
        expired = False
        while self._readers:
            place, reader = next(iter(self._readers.items()))
            if now_ns - reader.used_ns <= idle_ms_max * 1_000_000:
                break
            del self._readers[place]
            self._drop(reader)
            expired = True
        return expired

    def _drop(self, reader: _Reader) -> None:
        if reader.extending is not None:
            reader.extending.cancel()
        ahead, reader.ahead = reader.ahead, []
        self._dropped.add(len(ahead))
        for planned in ahead:
            self._blocks.unclaim(planned.key, planned.entry)

    async def close(self) -> None:
        """Stop reading ahead and release all claims."""
        extending = [reader.extending for reader in self._readers.values() if reader.extending is not None]
        while self._readers:
            self._drop(self._readers.popitem(last=False)[1])
        await asyncio.gather(*extending, return_exceptions=True)


def _fitting(entries: Sequence[BlockEntry], room_bytes: int) -> int:
    """Return how many of the blocks, from the first on, fit into the room."""
    for number, entry in enumerate(entries):
        room_bytes -= memory_bytes_of(entry)
        if room_bytes < 0:
            return number
    return len(entries)
