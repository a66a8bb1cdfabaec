"""Reads a little of many streams at once, as an open of thousands of partitions needs it.

What lives here: one look into each object for all streams that lie in it, so that what lies side by side comes with one GET and no stream costs a
task. It is a shortcut past `reader` and never the last word: what fails here, is not known yet or has no room is left out of the answer, and a
read of its own tells why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from ponor_runtime.budgets import BudgetExceededError
from ponor_runtime.clock import Clock
from ponor_runtime.identity import StreamId
from ponor_runtime.object_store import ObjectStoreError

from s3stream.cache.block_cache import BlockCache
from s3stream.cache.index_cache import ObjectIndexCache
from s3stream.errors import S3StreamError
from s3stream.objects.block import DataBlock, memory_bytes_of
from s3stream.objects.format import BlockEntry
from s3stream.objects.keys import object_key
from s3stream.ports import ObjectManager, ObjectPiece
from s3stream.record_run import PlannedPiece, RecordRun
from s3stream.records import StreamRecord
from s3stream.turns import at_once

STREAMS_PER_TURN: Final = 32
"""After so many others get the loop."""

StreamPart: TypeAlias = tuple[StreamId, int, int]
"""[start, end) of a stream."""


class _Place(NamedTuple):
    """A piece of one of the streams in an object."""

    number: int
    stream_id: StreamId
    start_offset: int
    piece: ObjectPiece


class TogetherReader:
    """Shares the caches of `ObjectStreamReader`."""

    def __init__(
        self, objects: ObjectManager, indexes: ObjectIndexCache, blocks: BlockCache, clock: Clock
    ) -> None:
        self._objects = objects
        self._indexes = indexes
        self._blocks = blocks
        self._clock = clock

    async def read(self, parts: Sequence[StreamPart], max_bytes: int) -> list[list[StreamRecord]]:
        """For each part its contiguous records from the start on, within `max_bytes` but one at least; none where it takes a read of its own.

        All together take at most half of the block cache, and stay in it as long as there is room.
        """
        runs = [RecordRun(*part, max_bytes) for part in parts]
        held = [True] * len(parts)
        room_bytes = self._blocks.claims_bytes_max
        for key, places in (await self._places(parts)).items():
            room_bytes -= await self._read_object(key, places, runs, held, room_bytes)
        return [run.records for run in runs]

    async def _places(self, parts: Sequence[StreamPart]) -> dict[str, list[_Place]]:
        """What to read of which object, objects in the order in which the streams go through them."""
        places: dict[str, list[_Place]] = {}
        for number, (stream_id, start_offset, end_offset) in enumerate(parts):
            if number % STREAMS_PER_TURN == 0:
                await self._clock.sleep(0)
            for piece in await self._objects.find_objects(stream_id, start_offset, end_offset):
                place = _Place(number, stream_id, max(start_offset, piece.start_offset), piece)
                places.setdefault(object_key(piece.namespace, piece.object_id), []).append(place)
        return {key: places[key] for key in sorted(places, key=lambda key: places[key][0].piece.object_id)}

    async def _read_object(
        self, key: str, places: list[_Place], runs: Sequence[RecordRun], held: list[bool], room_bytes: int
    ) -> int:
        """Add what an object has to the runs; returns the room it took. A stream that misses a piece is done."""
        places.sort(key=lambda place: (place.stream_id, place.start_offset))
        try:
            index = await self._indexes.open(key, places[0].piece.size_bytes)
            entries: list[list[BlockEntry]] = [
                list(index.blocks_of(place.stream_id, place.start_offset, place.piece.end_offset))
                for place in places
            ]
            all_entries = [entry for some in entries for entry in some]
            size_bytes = sum(map(memory_bytes_of, all_entries))
            if size_bytes > room_bytes:
                raise BudgetExceededError("no room in the block cache for a read of many streams")
            blocks = iter(await self._blocks.blocks(key, all_entries))
        except (ObjectStoreError, S3StreamError, BudgetExceededError):
            for place in places:
                held[place.number] = False
            return 0
        for count, (place, some) in enumerate(zip(places, entries, strict=True)):
            if count % STREAMS_PER_TURN == 0:
                await self._clock.sleep(0)
            own = [next(blocks) for _ in some]
            if held[place.number]:
                held[place.number] = _add(key, place.piece, own, runs[place.number])
        return size_bytes


def _add(key: str, piece: ObjectPiece, blocks: Sequence[DataBlock], run: RecordRun) -> bool:
    """Put a piece behind a run; False when the run ends with it."""
    if piece.start_offset > run.next_offset:
        return False  # objects came in another order than their offsets
    planned = PlannedPiece(key, piece.end_offset, min(run.end_offset, piece.end_offset), ())
    try:
        at_once(run.piece_steps(planned, blocks))
    except S3StreamError:
        return False
    return not run.is_full
