"""Receive a snapshot from another controller, verify it, and make it durable.

The partial file survives a restart, so that the leader does not send stored pieces again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from ponor_journal.segment_files import NO_SPACE
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.snapshot import SnapshotCorruptError, SnapshotReader
from ponor_metadata.nouns.cluster import cluster_of
from ponor_raft.entry import SnapshotMeta
from ponor_raft.messages import SnapshotChunk
from ponor_runtime.clock import Clock
from ponor_runtime.disk import DiskFile

from ponor_controller.consensus.snapshot_files import SnapshotFiles, body_digest
from ponor_controller.consensus.snapshot_format import SnapshotHeader, encode_header, header_bytes

CHUNKS_WAITING_MAX: Final = 16
"""Bound of queued chunks. The Raft core requests one at a time; former leaders may send more."""
BODY_BYTES_MAX: Final = 4 * 1024 * 1024 * 1024
"""Largest image that is accepted. A chunk of a larger image is ignored."""

KeepChunk: TypeAlias = Callable[[SnapshotChunk, int], None]
Install: TypeAlias = Callable[[SnapshotHeader, MetadataImage], Awaitable[None]]


@dataclass(slots=True)
class _Partial:
    """A partially received body."""

    meta: SnapshotMeta
    file: DiskFile
    kept_bytes: int


class SnapshotReceiving:
    """Stores chunks one after another while `run` runs.

    `keep` reports the stored bytes to the Raft core; `install` installs a complete and verified snapshot.
    """

    def __init__(self, files: SnapshotFiles, clock: Clock, keep: KeepChunk, install: Install) -> None:
        self._files = files
        self._clock = clock
        self._keep = keep
        self._install = install
        self._chunks: deque[SnapshotChunk] = deque(maxlen=CHUNKS_WAITING_MAX)
        self._filled = asyncio.Event()
        self._partial: _Partial | None = None

    def receive(self, chunk: SnapshotChunk) -> None:
        """Queue a received piece."""
        self._chunks.append(chunk)
        self._filled.set()

    async def run(self) -> None:
        """Store pieces until cancelled.

        Raises:
            OSError: the disk failed; the process must stop.
        """
        try:
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self._chunks:
                    await self._store_if_space(self._chunks.popleft())
        finally:
            if self._partial is not None:
                await self._partial.file.close()

    async def _store_if_space(self, chunk: SnapshotChunk) -> None:
        """Store a piece. If the disk is full, drop the piece; the leader sends it again."""
        try:
            await self._store(chunk)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    async def _store(self, chunk: SnapshotChunk) -> None:
        if not 0 < chunk.meta.size_bytes <= BODY_BYTES_MAX:
            return
        partial = await self._open(chunk.meta)
        fits = chunk.offset == partial.kept_bytes <= chunk.meta.size_bytes - len(chunk.data)
        if fits and chunk.data:
            begin = header_bytes(chunk.meta.membership)
            await partial.file.write(begin + chunk.offset, [chunk.data])
            partial.kept_bytes += len(chunk.data)
        if partial.kept_bytes < chunk.meta.size_bytes:
            self._keep(chunk, partial.kept_bytes)
            return
        await self._finish(partial, chunk)

    async def _open(self, meta: SnapshotMeta) -> _Partial:
        """Open the partial file of this snapshot and remove the partial files of other snapshots."""
        partial = self._partial
        if partial is not None and (partial.meta.index, partial.meta.digest) == (meta.index, meta.digest):
            return partial
        if partial is not None:
            self._partial = None
            await partial.file.close()
        path = self._files.partial_path(meta.index, meta.digest)
        for other in await self._files.partials():
            if other != path:
                await self._files.remove(other)
        file = await self._files.open_file(path)
        kept_bytes = max(0, await file.size() - header_bytes(meta.membership))
        self._partial = _Partial(meta, file, min(kept_bytes, meta.size_bytes))
        return self._partial

    async def _finish(self, partial: _Partial, chunk: SnapshotChunk) -> None:
        meta = partial.meta
        path = self._files.partial_path(meta.index, meta.digest)
        image = await self._verified_image(partial)
        self._partial = None
        if image is None:  # mixed from two leaders, torn by a crash, or damaged in transit: start again
            await partial.file.close()
            await self._files.remove(path)
            self._keep(chunk, 0)
            return
        header = _received_header(meta, image)
        await partial.file.write_sync(0, [encode_header(header)])
        await partial.file.close()
        await self._files.adopt(path, header)
        await self._install(header, image)

    async def _verified_image(self, partial: _Partial) -> MetadataImage | None:
        """The image, decoded in steps of a millisecond or two; None if the digest of the body differs."""
        meta = partial.meta
        begin = header_bytes(meta.membership)
        # One read, because joining pieces of 60 MB takes 30 ms on the event loop.
        body = await partial.file.read(begin, meta.size_bytes)
        if await body_digest(body, self._clock) != meta.digest:
            return None
        try:
            reader = SnapshotReader(body)
            while reader.read_section():
                await self._clock.sleep(0)
        except SnapshotCorruptError:
            return None
        return reader.image if reader.image.index == meta.index else None


def _received_header(meta: SnapshotMeta, image: MetadataImage) -> SnapshotHeader:
    cluster = cluster_of(image)
    return SnapshotHeader(
        meta.index,
        meta.term,
        cluster.incarnation if cluster is not None else 0,
        image.cluster_time_ms,
        image.digest,
        meta.digest,
        meta.size_bytes,
        meta.membership,
        received=True,
    )
