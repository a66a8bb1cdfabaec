"""Reads a stream from objects: read index, then object indexes, then blocks.

Whatever is not in an object yet (log cache, WAL) is the business of `storage.py`, which asks here for the older part only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamId
from ponor_runtime.object_store import ObjectNotFoundError, ObjectStore
from ponor_runtime.telemetry import Telemetry

from s3stream.cache.block_cache import BlockCache
from s3stream.cache.index_cache import ObjectIndexCache
from s3stream.errors import ObjectCorruptError, ReadTimeoutError, S3StreamError
from s3stream.objects.block import DataBlock
from s3stream.objects.format import BlockEntry
from s3stream.objects.keys import object_key
from s3stream.ports import ObjectManager, ObjectPiece
from s3stream.records import StreamRecord

INDEX_CACHE_BYTES_MAX: Final = 32 * 1024 * 1024
VANISHED_TRIES_MAX: Final = 5
"""How often the read index may name an object that the store does not have. Compaction replaces objects long before they are deleted, so
one renewed answer is usually enough."""

LAG_WAIT_MS_FIRST: Final = 5
LAG_WAIT_MS_MAX: Final = 200


class ObjectStreamReader:
    """Reads streams from the objects of one store; shares one index cache and one block cache among all readers of the process."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        objects: ObjectManager,
        clock: Clock,
        telemetry: Telemetry,
        block_cache_bytes_max: int,
        index_cache_bytes_max: int = INDEX_CACHE_BYTES_MAX,
        timeout_ms: int = 30_000,
    ) -> None:
        self._objects = objects
        self._clock = clock
        self._telemetry = telemetry
        self._timeout_ms: Final = timeout_ms
        self._indexes = ObjectIndexCache(store, bytes_max=index_cache_bytes_max)
        self._blocks = BlockCache(store, bytes_max=block_cache_bytes_max, telemetry=telemetry)

    async def read(
        self,
        stream_id: StreamId,
        start_offset: int,
        end_offset: int,
        max_bytes: int,
        *,
        timeout_ms: int | None = None,
    ) -> list[StreamRecord]:
        """Contiguous records of one stream from the one that contains `start_offset` on.

        Args:
            stream_id: whose records.
            start_offset: may lie within a record; at or above the stream's start.
            end_offset: exclusive; a record that begins below it may reach beyond it. Must be committed, or become so before the deadline.
            max_bytes: of encoded records; the first record is returned however big it is.
            timeout_ms: instead of the one given at construction.

        Returns:
            At least one record, possibly fewer than asked for: what one answer of the read index covered.

        Raises:
            ReadTimeoutError: the metadata stayed behind, or the store was slow.
            ObjectNotFoundError: the metadata goes on naming an object that the store does not have.
            ObjectCorruptError: an object breaks the format or lacks what the metadata says it has.
            BudgetExceededError: too many readers wait for room in the block cache; retriable.
            ObjectStoreError: the store failed.
        """
        assert 0 <= start_offset < end_offset, f"stream {stream_id}: [{start_offset}, {end_offset})"
        limit_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                with self._telemetry.span("ponor.fetch.objects", stream_id=stream_id):
                    return await self._read_when_known(stream_id, start_offset, end_offset, max_bytes)
        except TimeoutError as error:
            raise ReadTimeoutError(
                f"stream {stream_id}, offset {start_offset}: not read from objects within {limit_ms} ms;"
                " the object store is slow or the metadata lags"
            ) from error

    async def close(self) -> None:
        """Stop all GETs and drop the caches."""
        await self._indexes.close()
        await self._blocks.close()

    async def _read_when_known(
        self, stream_id: StreamId, start_offset: int, end_offset: int, max_bytes: int
    ) -> list[StreamRecord]:
        wait_ms = LAG_WAIT_MS_FIRST
        vanished = 0
        while True:
            pieces = await self._objects.find_objects(stream_id, start_offset, end_offset)
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
        run = _RecordRun(stream_id, start_offset, end_offset, max_bytes)
        for piece in pieces:
            try:
                await self._read_piece(piece, run)
            except (ObjectNotFoundError, S3StreamError):
                if not run.records:
                    raise
                break  # what is there is contiguous and proven; the next read meets the error again
            if run.is_full or run.next_offset >= end_offset:
                break
        return run.records

    async def _read_piece(self, piece: ObjectPiece, run: _RecordRun) -> None:
        key = object_key(piece.namespace, piece.object_id)
        index = await self._indexes.open(key, piece.size_bytes)
        end_offset = min(run.end_offset, piece.end_offset)
        entries = index.blocks_of(run.stream_id, run.next_offset, end_offset)
        for block in await self._blocks.blocks(key, _enough(entries, run.room_bytes)):
            run.take(key, block, end_offset)
        if run.next_offset < end_offset and not run.is_full:
            raise ObjectCorruptError(
                f"{key}, position 0: object ends stream {run.stream_id} at offset {run.next_offset}; the metadata says"
                f" {piece.end_offset}"
            )

    def _forget(self, pieces: Sequence[ObjectPiece]) -> None:
        for piece in pieces:
            key = object_key(piece.namespace, piece.object_id)
            self._indexes.forget(key)
            self._blocks.forget(key)


class _RecordRun:
    """The contiguous records that one read has gathered."""

    def __init__(self, stream_id: StreamId, start_offset: int, end_offset: int, max_bytes: int) -> None:
        self.stream_id: Final = stream_id
        self.end_offset: Final = end_offset
        self.next_offset = start_offset
        self.room_bytes = max_bytes
        self.is_full = False
        self.records: list[StreamRecord] = []

    def take(self, key: str, block: DataBlock, end_offset: int) -> None:
        """Append the block's records from `next_offset` on, until `end_offset` or until there is no room."""
        if self.is_full:
            return
        for record in block.records_from(self.next_offset):
            if record.base_offset >= end_offset:
                return
            if self.records and record.size_bytes > self.room_bytes:
                self.is_full = True
                return
            belongs = (
                record.base_offset <= self.next_offset
                if not self.records
                else record.base_offset == self.next_offset
            )
            if not belongs or record.end_offset <= self.next_offset:
                raise ObjectCorruptError(
                    f"{key}, position {block.entry.position}: record [{record.base_offset}, {record.end_offset}) of stream"
                    f" {self.stream_id} where offset {self.next_offset} belongs"
                )
            self.records.append(record)
            self.next_offset = record.end_offset
            self.room_bytes -= record.size_bytes
        self.is_full = self.room_bytes <= 0


def _enough(entries: Sequence[BlockEntry], room_bytes: int) -> Sequence[BlockEntry]:
    """As many blocks as may be needed. The first counts for nothing, because the read may begin at its last record."""
    expected_bytes = 0
    for number, entry in enumerate(entries):
        if number > 0:
            if expected_bytes >= room_bytes:
                return entries[:number]
            expected_bytes += entry.size_bytes
    return entries
