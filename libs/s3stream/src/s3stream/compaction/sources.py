"""Sources of a compaction: objects, their indexes, and the runs of live blocks in them.

Only `read_sources` does I/O: it opens the indexes. Two objects that contain the same offsets are an
error.
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
"""Indexes that are fetched at the same time; each may be a mebibyte."""


class ObjectLocation(NamedTuple):
    """An object as recorded in the metadata."""

    object_id: ObjectId
    namespace: str
    bucket_index: int
    size_bytes: int

    @property
    def key(self) -> str:
        """The object's key in the store."""
        return object_key(self.namespace, self.object_id)


class Blocks(Protocol):
    """Index entries in (stream id, start offset) order: an `ObjectIndex` or a list."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[BlockEntry]: ...


@dataclass(frozen=True, slots=True)
class SourceIndex:
    """An object to be replaced, and its index."""

    object: ObjectLocation
    blocks: Blocks


class SourceBlock(NamedTuple):
    """A block, and the number of its source."""

    source: int
    entry: BlockEntry


class Run(NamedTuple):
    """Blocks of one stream with consecutive offsets, from any sources."""

    blocks: tuple[SourceBlock, ...]
    size_bytes: int


async def read_sources(store: ObjectStore, objects: Sequence[ObjectLocation]) -> list[SourceIndex]:
    """Open the indexes of objects, in order, without reading data.

    Raises:
        ObjectNotFoundError: an object was deleted.
        ObjectCorruptError: the end of an object broke the format, or its size differed from the
            metadata, in every attempt.
    """
    places = asyncio.Semaphore(OPENED_AT_ONCE_MAX)

    async def opened(location: ObjectLocation) -> SourceIndex:
        async with places:
            return SourceIndex(location, await _read_index(store, location))

    return list(await asyncio.gather(*map(opened, objects)))


async def _read_index(store: ObjectStore, location: ObjectLocation) -> ObjectIndex:
    """Open an object. A truncated response is retried before the object counts as corrupt."""
    for _ in range(READ_TRIES_MAX - 1):
        try:
            return await read_index(store, location.key, location.size_bytes)
        except ObjectCorruptError:
            continue
    return await read_index(store, location.key, location.size_bytes)


def live_blocks(sources: Sequence[SourceIndex], streams: Mapping[StreamId, StreamState]) -> list[SourceBlock]:
    """Return the live blocks, sorted by (stream, offset).

    A block is dropped if it ends at or below the start of its stream, or if its stream was deleted. A block
    that spans the start is kept whole, because cutting it would require decoding.

    Raises:
        SourcesDisagreeError: two blocks contain the same offset, or a later one has an older epoch.
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
                f"stream {a.entry.stream_id}: {names} {broken}; the metadata is damaged; do not"
                " compact these objects"
            )
    return found


def _broken_order(a: BlockEntry, b: BlockEntry) -> str | None:
    """Return why block `b` cannot follow block `a` in one object; None if it can."""
    if a.stream_id != b.stream_id:
        return None
    if b.start_offset < a.end_offset:
        return f"both contain offset {b.start_offset}"
    if b.epoch < a.epoch:
        return f"have epoch {b.epoch} at offset {b.start_offset} after epoch {a.epoch}"
    return None


def runs_of(blocks: Collection[SourceBlock]) -> list[Run]:
    """Group sorted blocks into runs of consecutive offsets."""
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
