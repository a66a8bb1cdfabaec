"""Sources of a compaction: objects, their indexes, and the runs of live blocks in them.

Pure, except for `read_sources`, which opens the indexes. Two objects that contain the same offsets are an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from ponor_runtime.identity import ObjectId, StreamId
from ponor_runtime.object_store import ObjectStore

from s3stream.errors import ObjectCorruptError, SourcesDisagreeError
from s3stream.objects.format import BlockEntry
from s3stream.objects.index import ObjectIndex
from s3stream.objects.keys import object_key
from s3stream.objects.reader import READ_TRIES_MAX, read_index
from s3stream.ports import StreamState

OPENED_AT_ONCE_MAX: Final = 8
"""Indexes that are fetched at a time: each may be a mebibyte in flight."""


class ObjectLocation(NamedTuple):
    """An object as the metadata has it."""

    object_id: ObjectId
    namespace: str
    bucket_index: int
    size_bytes: int

    @property
    def key(self) -> str:
        """Its key in the store."""
        return object_key(self.namespace, self.object_id)


class Blocks(Protocol):
    """Index entries in (stream id, start offset) order; an `ObjectIndex` or a list."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[BlockEntry]: ...


@dataclass(frozen=True, slots=True)
class SourceIndex:
    """An object to be replaced, and what it holds."""

    object: ObjectLocation
    blocks: Blocks


class SourceBlock(NamedTuple):
    """A block, and which of the sources it lies in (by number)."""

    source: int
    entry: BlockEntry


class Run(NamedTuple):
    """Blocks of one stream that continue each other, from any sources."""

    blocks: tuple[SourceBlock, ...]
    size_bytes: int


async def read_sources(store: ObjectStore, objects: Sequence[ObjectLocation]) -> list[SourceIndex]:
    """Open the indexes of objects, in their order; data is not read.

    Raises:
        ObjectNotFoundError: one was deleted.
        ObjectCorruptError: the end of one breaks the format, or its size is not the one in the metadata, however often it is read.
    """
    places = asyncio.Semaphore(OPENED_AT_ONCE_MAX)

    async def opened(location: ObjectLocation) -> SourceIndex:
        async with places:
            return SourceIndex(location, await _read_index(store, location))

    return list(await asyncio.gather(*map(opened, objects)))


async def _read_index(store: ObjectStore, location: ObjectLocation) -> ObjectIndex:
    """An answer that broke off is asked for again before the object is called corrupt."""
    for _ in range(READ_TRIES_MAX - 1):
        try:
            return await read_index(store, location.key, location.size_bytes)
        except ObjectCorruptError:
            continue
    return await read_index(store, location.key, location.size_bytes)


def live_blocks(sources: Sequence[SourceIndex], streams: Mapping[StreamId, StreamState]) -> list[SourceBlock]:
    """The blocks that may still be read, sorted by (stream, offset).

    A block that ends at or below its stream's start is expired; one whose stream is not in `streams` was deleted with it. A block that spans
    the start stays whole: cutting it would mean to decode it.

    Raises:
        SourcesDisagreeError: two blocks hold the same offset, or a later one has an older epoch.
    """
    found = [
        SourceBlock(number, entry)
        for number, source in enumerate(sources)
        for entry in source.blocks
        if entry.stream_id in streams and entry.end_offset > streams[entry.stream_id].start_offset
    ]
    found.sort(key=_in_order)
    for a, b in pairwise(found):
        broken = _broken_order(a.entry, b.entry)
        if broken is not None:
            names = f"objects {sources[a.source].object.object_id} and {sources[b.source].object.object_id}"
            raise SourcesDisagreeError(
                f"stream {a.entry.stream_id}: {names} {broken}; the metadata is damaged, leave these objects alone"
            )
    return found


def _broken_order(a: BlockEntry, b: BlockEntry) -> str | None:
    """What keeps two blocks from standing in one object in this order."""
    if a.stream_id != b.stream_id:
        return None
    if b.start_offset < a.end_offset:
        return f"both hold offset {b.start_offset}"
    if b.epoch < a.epoch:
        return f"have epoch {b.epoch} at offset {b.start_offset} after epoch {a.epoch}"
    return None


def runs_of(blocks: Collection[SourceBlock]) -> list[Run]:
    """Sorted blocks as runs without a hole."""
    runs: list[Run] = []
    run: list[SourceBlock] = []
    for block in blocks:
        if run and not _continues(run[-1].entry, block.entry):
            runs.append(_run(run))
            run = []
        run.append(block)
    if run:
        runs.append(_run(run))
    return runs


def _run(blocks: Sequence[SourceBlock]) -> Run:
    return Run(tuple(blocks), sum(block.entry.size_bytes for block in blocks))


def _continues(last: BlockEntry, entry: BlockEntry) -> bool:
    return last.stream_id == entry.stream_id and last.end_offset == entry.start_offset


def _in_order(block: SourceBlock) -> tuple[int, int]:
    return block.entry.stream_id, block.entry.start_offset
