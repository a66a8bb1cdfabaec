"""Reads small parts of many streams together, as needed to open thousands of partitions.

Each object is opened once for all streams in it, so adjacent data needs one GET, and a stream needs
no task. This is an optimization: the result omits parts that fail, are not indexed yet or do not
fit. The caller then reads those streams individually and gets the data or the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from ponor_runtime.budgets import BudgetExceededError
from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamId
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.turns import at_once

from s3stream.cache.block_cache import BlockCache
from s3stream.cache.index_cache import ObjectIndexCache
from s3stream.errors import S3StreamError
from s3stream.objects.block import DataBlock, memory_bytes_of
from s3stream.objects.format import BlockEntry
from s3stream.objects.index import ObjectIndex
from s3stream.objects.keys import object_key
from s3stream.ports import ObjectManager, ObjectPiece
from s3stream.record_run import PlannedPiece, RecordRun
from s3stream.records import StreamRecord

STREAMS_PER_TURN: Final = 32
"""Streams processed in one turn of the event loop."""
OBJECTS_AT_ONCE_MAX: Final = 16
"""Objects that are opened, and then read, at the same time. A small stream is in as many objects as
there were uploads since its last rewrite. Opened one at a time, they would delay the opening of a
partition after a failover by two round trips each."""

StreamPart: TypeAlias = tuple[StreamId, int, int]
"""[start, end) of a stream."""


class _Place(NamedTuple):
    """A piece of one of the streams, and its object."""

    number: int
    stream_id: StreamId
    start_offset: int
    piece: ObjectPiece


class _Visit:
    """One object, and the pieces to read from it."""

    __slots__ = ("entries", "fits", "key", "places", "size_bytes")

    def __init__(self, key: str, places: Sequence[_Place]) -> None:
        self.key = key
        self.places = sorted(places, key=lambda place: (place.stream_id, place.start_offset))
        self.entries: list[Sequence[BlockEntry]] = []
        """The blocks for each piece, after the object was opened."""
        self.size_bytes = 0
        """Memory of the blocks."""
        self.fits = False
        """Whether the blocks fit into the room and are fetched."""

    def choose(self, index: ObjectIndex) -> None:
        """Determine the blocks of the pieces."""
        self.entries = [
            list(index.blocks_of(place.stream_id, place.start_offset, place.piece.end_offset))
            for place in self.places
        ]
        self.size_bytes = sum(memory_bytes_of(entry) for some in self.entries for entry in some)


class TogetherReader:
    """Reads parts of many streams with the caches of `ObjectStreamReader`."""

    def __init__(
        self, objects: ObjectManager, indexes: ObjectIndexCache, blocks: BlockCache, clock: Clock
    ) -> None:
        self._objects = objects
        self._indexes = indexes
        self._blocks = blocks
        self._clock = clock

    async def read(self, parts: Sequence[StreamPart], max_bytes: int) -> list[list[StreamRecord]]:
        """Return for each part its contiguous records from the start on: within `max_bytes`, but at
        least one. The list is empty if the part needs a separate read.

        All parts together use at most half of the block cache.
        """
        runs = [RecordRun(*part, max_bytes) for part in parts]
        held = [True] * len(parts)
        room_bytes = self._blocks.claims_bytes_max
        visits = [_Visit(key, places) for key, places in (await self._places(parts)).items()]
        for at in range(0, len(visits), OBJECTS_AT_ONCE_MAX):
            room_bytes -= await self._read_objects(
                visits[at : at + OBJECTS_AT_ONCE_MAX], runs, held, room_bytes
            )
        return [run.records for run in runs]

    async def _places(self, parts: Sequence[StreamPart]) -> dict[str, list[_Place]]:
        """Return the pieces to read, grouped by object. Objects are in the order of their ids."""
        places: dict[str, list[_Place]] = {}
        for number, (stream_id, start_offset, end_offset) in enumerate(parts):
            if number % STREAMS_PER_TURN == 0:
                await self._clock.sleep(0)
            for piece in await self._objects.find_objects(stream_id, start_offset, end_offset):
                place = _Place(number, stream_id, max(start_offset, piece.start_offset), piece)
                places.setdefault(object_key(piece.namespace, piece.object_id), []).append(place)
        return {key: places[key] for key in sorted(places, key=lambda key: places[key][0].piece.object_id)}

    async def _read_objects(
        self, visits: Sequence[_Visit], runs: Sequence[RecordRun], held: list[bool], room_bytes: int
    ) -> int:
        """Append the pieces of some objects to the runs in order; return the bytes of room used. A run
        ends at a missing piece.
        """
        taken_bytes = 0
        opened = await asyncio.gather(*map(self._open, visits), return_exceptions=True)
        for visit, error in zip(visits, opened, strict=True):
            _raise_unless_expected(error)
            visit.fits = error is None and visit.size_bytes <= room_bytes - taken_bytes
            taken_bytes += visit.size_bytes if visit.fits else 0
        fetched = await asyncio.gather(*map(self._fetch, visits), return_exceptions=True)
        for visit, blocks in zip(visits, fetched, strict=True):
            if isinstance(blocks, BaseException):
                _raise_unless_expected(blocks)
                taken_bytes -= visit.size_bytes
                await self._add(visit, None, runs, held)
            else:
                await self._add(visit, blocks, runs, held)
        assert 0 <= taken_bytes <= room_bytes
        return taken_bytes

    async def _open(self, visit: _Visit) -> None:
        piece = visit.places[0].piece
        visit.choose(await self._indexes.open(visit.key, piece.size_bytes, piece.range_count))

    async def _fetch(self, visit: _Visit) -> Sequence[DataBlock] | None:
        if not visit.fits:
            return None
        return await self._blocks.blocks(visit.key, [entry for some in visit.entries for entry in some])

    async def _add(
        self,
        visit: _Visit,
        blocks: Sequence[DataBlock] | None,
        runs: Sequence[RecordRun],
        held: list[bool],
    ) -> None:
        if blocks is None:
            for place in visit.places:
                held[place.number] = False
            return
        rest = iter(blocks)
        for count, (place, some) in enumerate(zip(visit.places, visit.entries, strict=True)):
            if count % STREAMS_PER_TURN == 0:
                await self._clock.sleep(0)
            own = [next(rest) for _ in some]
            if held[place.number]:
                held[place.number] = _add(visit.key, place.piece, own, runs[place.number])


def _raise_unless_expected(error: BaseException | None) -> None:
    """Ignore errors of store and object. The stream's own read will report them."""
    if error is not None and not isinstance(error, ObjectStoreError | S3StreamError | BudgetExceededError):
        raise error


def _add(key: str, piece: ObjectPiece, blocks: Sequence[DataBlock], run: RecordRun) -> bool:
    """Append a piece to a run; return False when the run ends with it."""
    if piece.start_offset > run.next_offset:
        return False  # the objects are not in the order of this stream's offsets
    planned = PlannedPiece(key, piece.end_offset, min(run.end_offset, piece.end_offset), ())
    try:
        at_once(run.piece_steps(planned, blocks))
    except S3StreamError:
        return False
    return not run.is_full
