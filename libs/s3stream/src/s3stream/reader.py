"""Reads of streams from objects: read index, then object indexes, then blocks.

`storage.py` serves data that is not in an object yet (log cache, WAL) and calls this module for
older data only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamId
from ponor_runtime.object_store import ObjectNotFoundError, ObjectStore
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.turns import Turns

from s3stream.cache.block_cache import BlockCache
from s3stream.cache.index_cache import ObjectIndexCache
from s3stream.errors import ObjectCorruptError, ReadTimeoutError, S3StreamError
from s3stream.objects.block import DataBlock
from s3stream.objects.format import BlockEntry
from s3stream.objects.keys import object_key
from s3stream.ports import ObjectManager, ObjectPiece
from s3stream.read_ahead import ReadAhead, ReadBlock
from s3stream.read_together import StreamPart, TogetherReader
from s3stream.record_run import PlannedPiece, RecordRun
from s3stream.records import RECORD_HEADER_BYTES, StreamRecord

INDEX_CACHE_BYTES_MAX: Final = 32 * 1024 * 1024
VANISHED_TRIES_MAX: Final = 5
"""How often the read index may name an object that the store does not have. Compacted objects are
deleted long after their replacement, so one repeated query is usually enough."""

READ_AHEAD_BLOCKS_MAX: Final = 8
OPENED_AT_ONCE_MAX: Final = 8
"""Objects of one read that are opened at the same time. The pieces of a small stream are in many objects."""

READ_PIECES_MAX: Final = 16
"""Pieces that a read requests from the read index. Requesting `PIECES_MAX` took 0.6 ms of the event
loop per read, and most reads use one or two pieces. This number suffices for read-ahead, and for a fetch
of a stream with little data in each object."""

LAG_WAIT_MS_FIRST: Final = 5
LAG_WAIT_MS_MAX: Final = 200


class ObjectStreamReader:
    """Reads streams from the objects of one store. All readers of the process share its index cache
    and block cache.
    """

    def __init__(
        self,
        *,
        store: ObjectStore,
        objects: ObjectManager,
        clock: Clock,
        telemetry: Telemetry,
        block_cache_bytes_max: int,
        index_cache_bytes_max: int = INDEX_CACHE_BYTES_MAX,
        read_ahead_blocks_max: int = READ_AHEAD_BLOCKS_MAX,
        timeout_ms: int = 30_000,
    ) -> None:
        self._objects = objects
        self._clock = clock
        self._telemetry = telemetry
        self._timeout_ms: Final = timeout_ms
        self._turns = Turns()
        self._blocks = BlockCache(
            store, bytes_max=block_cache_bytes_max, telemetry=telemetry, turns=self._turns
        )
        self._indexes = ObjectIndexCache(
            store, bytes_max=index_cache_bytes_max, on_opened=self._blocks.keep_tail
        )
        self._together = TogetherReader(objects, self._indexes, self._blocks, clock)
        self._ahead = ReadAhead(
            self._blocks, self._indexes, clock, telemetry, blocks_max=read_ahead_blocks_max
        )

    async def read(
        self,
        stream_id: StreamId,
        start_offset: int,
        end_offset: int,
        max_bytes: int,
        *,
        timeout_ms: int | None = None,
    ) -> list[StreamRecord]:
        """Return contiguous records of one stream from the one that contains `start_offset` on.

        Args:
            stream_id: the stream.
            start_offset: may lie within a record; at or above the stream's start.
            end_offset: exclusive; a record that begins below it may extend beyond it. Must be
                committed before the deadline.
            max_bytes: limit of payload bytes; the first record is returned regardless of its size.
            timeout_ms: replaces the one given at construction.

        Returns:
            At least one record; possibly fewer than requested, because one answer of the read index
                covers a limited range.

        Raises:
            ReadTimeoutError: the metadata lagged, or the store was slow.
            ObjectNotFoundError: the metadata repeatedly named an object that the store does not have.
            ObjectCorruptError: an object breaks the format or lacks data that the metadata list.
            BudgetExceededError: too many readers wait for room in the block cache; retriable.
            ObjectStoreError: the store failed.
        """
        assert 0 <= start_offset < end_offset, f"stream {stream_id}: [{start_offset}, {end_offset})"
        limit_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                about = {"ponor.stream.id": stream_id, "ponor.fetch.start_offset": start_offset}
                with self._telemetry.span("ponor.fetch.objects", about):
                    return await self._read_when_known(stream_id, start_offset, end_offset, max_bytes)
        except TimeoutError as error:
            raise ReadTimeoutError(
                f"stream {stream_id}, offset {start_offset}: not read from objects within {limit_ms} ms;"
                " the object store is slow or the metadata lags"
            ) from error

    async def read_together(self, parts: Sequence[StreamPart], max_bytes: int) -> list[list[StreamRecord]]:
        """Read small parts of many streams; see `s3stream.read_together`."""
        return await self._together.read(parts, max_bytes)

    async def close(self) -> None:
        """Cancel all GETs and clear the caches."""
        await self._ahead.close()
        await self._indexes.close()
        await self._blocks.close()

    async def _read_when_known(
        self, stream_id: StreamId, start_offset: int, end_offset: int, max_bytes: int
    ) -> list[StreamRecord]:
        wait_ms = LAG_WAIT_MS_FIRST
        vanished = 0
        while True:
            with self._telemetry.step("ponor.fetch.find", {"ponor.stream.id": stream_id}):
                pieces = await self._objects.find_objects(
                    stream_id, start_offset, end_offset, pieces_max=READ_PIECES_MAX
                )
            if pieces:
                try:
                    return await self._read_pieces(pieces, stream_id, start_offset, end_offset, max_bytes)
                except ObjectNotFoundError:
                    vanished += 1
                    if vanished >= VANISHED_TRIES_MAX:
                        raise
                    self._forget(pieces)
            await self._clock.sleep(wait_ms / 1000)
            wait_ms = min(wait_ms * 2, LAG_WAIT_MS_MAX)

    async def _read_pieces(
        self,
        pieces: Sequence[ObjectPiece],
        stream_id: StreamId,
        start_offset: int,
        end_offset: int,
        max_bytes: int,
    ) -> list[StreamRecord]:
        assert pieces, "the read index found no objects"
        run = RecordRun(stream_id, start_offset, end_offset, max_bytes)
        planned = await self._plan(pieces, run)
        # Process all pieces. The answer ends at the first error, and the next read, which starts
        # there, raises it.
        outcomes = await asyncio.gather(
            *(self._blocks_of(part) for part in planned if part.error is None), return_exceptions=True
        )
        read: list[ReadBlock] = []
        for part, outcome in zip_longest(planned, outcomes):
            if isinstance(outcome, list):
                read.extend((part.key, block) for block in outcome)
            try:
                await self._turns.run(run.piece_steps(part, part.error if outcome is None else outcome))
            except (ObjectNotFoundError, S3StreamError):
                if not run.records:
                    raise
                break
        self._ahead.advanced(
            stream_id,
            start_offset,
            run.next_offset,
            end_offset,
            read=read,
            pieces=pieces,
        )
        return run.records

    async def _blocks_of(self, part: PlannedPiece) -> list[DataBlock]:
        key = part.key
        if part.ahead or any(self._blocks.knows(key, entry) for entry in part.entries):
            # A damaged block that this read does not need is reported to the read that needs it.
            with suppress(ObjectCorruptError):
                return await self._blocks.blocks(key, [*part.entries, *part.ahead])
        return await self._blocks.blocks(key, part.entries)

    async def _plan(self, pieces: Sequence[ObjectPiece], run: RecordRun) -> list[PlannedPiece]:
        """Return the blocks that may be needed, by object, up to the first object that cannot be opened.

        Only the index of an object shows how much data of the stream the object contains, so objects
        are opened in groups of growing size until there is enough data.
        """
        planned: list[PlannedPiece] = []
        next_offset = run.next_offset
        expected_bytes = 0
        at, group_size = 0, 1
        while at < len(pieces) and (expected_bytes < run.room_bytes or not planned):
            group = pieces[at : at + group_size]
            at += len(group)
            group_size = min(2 * group_size, OPENED_AT_ONCE_MAX)
            keys = [object_key(piece.namespace, piece.object_id) for piece in group]
            opened = await asyncio.gather(
                *(
                    self._indexes.open(key, piece.size_bytes, piece.range_count)
                    for key, piece in zip(keys, group, strict=True)
                ),
                return_exceptions=True,
            )
            for key, piece, index in zip(keys, group, opened, strict=True):
                end_offset = min(run.end_offset, piece.end_offset)
                if isinstance(index, BaseException):
                    planned.append(PlannedPiece(key, piece.end_offset, end_offset, (), index))
                    return planned
                entries = index.blocks_of(run.stream_id, next_offset, end_offset)
                enough = _enough(
                    entries, next_offset, max(run.room_bytes - expected_bytes, 0 if planned else 1)
                )
                rest = entries[len(enough) :]
                ahead = (
                    self._ahead.with_read(run.stream_id, run.next_offset, key, enough, rest) if rest else ()
                )
                planned.append(PlannedPiece(key, piece.end_offset, end_offset, enough, None, ahead))
                if rest:
                    return planned
                expected_bytes += sum(_sure_bytes(entry, next_offset) for entry in enough)
                next_offset = end_offset
        return planned

    def _forget(self, pieces: Sequence[ObjectPiece]) -> None:
        for piece in pieces:
            key = object_key(piece.namespace, piece.object_id)
            self._indexes.forget(key)
            self._blocks.forget(key)


def _enough(entries: Sequence[BlockEntry], next_offset: int, room_bytes: int) -> Sequence[BlockEntry]:
    """Return as many blocks as may be needed to fill the room from `next_offset` on."""
    for number, entry in enumerate(entries):
        if room_bytes <= 0:
            return entries[:number]
        room_bytes -= _sure_bytes(entry, next_offset)
    return entries


def _sure_bytes(entry: BlockEntry, next_offset: int) -> int:
    """Return the payload bytes that a block certainly contributes: 0 if the read begins within it,
    possibly at its last record.
    """
    if entry.start_offset < next_offset:
        return 0
    return entry.size_bytes - entry.record_count * RECORD_HEADER_BYTES
