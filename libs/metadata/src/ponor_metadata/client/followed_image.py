"""The image of a subscriber. It contains only verified batches and never goes back to an earlier index.

The digest of a frame is checked before any of its batches is applied. Module `subscription` receives frames.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from crc32c import crc32c
from ponor.controller.v1.subscription_service_pb2 import (
    Batches,
    Progress,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
)
from ponor.metadata.v1.records_pb2 import RecordBatch

from ponor_metadata.client.errors import (
    HistoryReplacedError,
    ImageDivergedError,
    MetadataLagError,
    ProtocolError,
)
from ponor_metadata.image.batches import running_digest
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.snapshot import SnapshotReader
from ponor_metadata.nouns.cluster import cluster_of

BatchListener = Callable[[RecordBatch], None]
ImageListener = Callable[[MetadataImage], None]


@dataclass(slots=True)
class _SnapshotInTransit:
    begin: SnapshotBegin
    data: bytearray = field(default_factory=bytearray)


class FollowedImage:
    """The image and its listeners.

    `listeners` are called with each batch right after it was applied to `image`, in order. `image_listeners`
    are called with the new image after a snapshot replaced `image`; no listener gets the snapshot's batches.
    """

    def __init__(self, snapshot_bytes_max: int, give_way: Callable[[], Awaitable[None]]) -> None:
        """Begin with an empty image.

        `give_way` is called between steps of longer work and may yield to the event loop.
        """
        self._snapshot_bytes_max = snapshot_bytes_max
        self._give_way = give_way
        self._image = MetadataImage()
        self._snapshot: _SnapshotInTransit | None = None
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiters_made = 0
        self.listeners: list[BatchListener] = []
        self.image_listeners: list[ImageListener] = []

    @property
    def image(self) -> MetadataImage:
        """Committed metadata as of the newest verified index; another object after a snapshot."""
        return self._image

    @property
    def incarnation(self) -> int:
        """The cluster's incarnation in the image."""
        return _incarnation_of(self._image)

    def connected(self) -> None:
        """Begin a new connection and drop an incomplete snapshot."""
        self._snapshot = None

    def begin_snapshot(self, begin: SnapshotBegin) -> None:
        """Begin a snapshot, whose chunks follow.

        Raises:
            ProtocolError: the snapshot is older than the present image, or too large.
            HistoryReplacedError: a forced recovery happened, so it may lack batches of the present image.
        """
        seen = self._image
        if begin.size_bytes > self._snapshot_bytes_max:
            raise ProtocolError(
                f"a snapshot of {begin.size_bytes} bytes exceeds the limit; raise snapshot_bytes_max"
            )
        if seen.index and begin.incarnation > self.incarnation:
            raise HistoryReplacedError(
                f"the cluster was recovered by force into incarnation {begin.incarnation}; batches of"
                " incarnation "
                f"{self.incarnation} that this process applied (up to index {seen.index}) may be undone:"
                " restart it"
            )
        if begin.incarnation < self.incarnation or begin.index < seen.index:
            raise ProtocolError(
                f"a snapshot at index {begin.index} of incarnation {begin.incarnation} is older than the"
                f" present image, which is at index {seen.index} of incarnation {self.incarnation}"
            )
        self._snapshot = _SnapshotInTransit(begin)

    def add_chunk(self, chunk: SnapshotChunk) -> None:
        """Add the next chunk of the snapshot.

        Raises:
            ProtocolError: the chunk is damaged, or exceeds the announced size of the snapshot.
        """
        transit = self._snapshot
        if transit is None or len(transit.data) + len(chunk.data) > transit.begin.size_bytes:
            raise ProtocolError("a snapshot chunk arrived without a SnapshotBegin")
        if crc32c(chunk.data) != chunk.crc32c:
            raise ProtocolError(f"snapshot {transit.begin.index}: wrong CRC32C of a chunk")
        transit.data += chunk.data

    async def end_snapshot(self, end: SnapshotEnd) -> None:
        """Verify the complete snapshot and replace the image by it.

        Raises:
            ProtocolError: size or digest differ from the announced ones.
            SnapshotCorruptError: the snapshot cannot be decoded.
        """
        transit, self._snapshot = self._snapshot, None
        if transit is None or len(transit.data) != transit.begin.size_bytes:
            raise ProtocolError("a snapshot ended before its announced size")
        begin = transit.begin
        reader = SnapshotReader(transit.data)
        while reader.read_section():
            await self._give_way()
        image = reader.image
        if (image.index, image.digest, _incarnation_of(image)) != (
            begin.index,
            end.digest,
            begin.incarnation,
        ):
            raise ProtocolError(
                f"snapshot {begin.index}: index, digest or incarnation differs from the announced one"
            )
        assert image.index >= self._image.index, (
            "the new image is older than the image that readers have seen"
        )
        self._image = image
        for listener in tuple(self.image_listeners):
            listener(image)
        self._wake_waiters()

    async def apply(self, frame: Batches) -> None:
        """Verify a whole frame, then apply its batches one by one.

        Raises:
            ProtocolError: the frame does not begin directly after the image's index.
            ImageDivergedError: the digests differ; nothing of the frame was applied.
            UnknownRecordError: the log contains a kind of record that this build does not support.
        """
        image = self._image
        if frame.first_index != image.index + 1:
            raise ProtocolError(f"batches from index {frame.first_index} on for an image at {image.index}")
        digest = image.digest
        for encoded in frame.batches:
            digest = running_digest(digest, encoded)
        if digest != frame.digest:
            # The image stays at the last verified index until a snapshot replaces it.
            raise ImageDivergedError(f"the digest after index {image.index} differs from the controller's")
        for encoded in frame.batches:
            before = image.index
            batch = image.apply_committed(encoded)
            assert image.index == before + 1, "the index of a batch does not follow the index of the image"
            for listener in tuple(self.listeners):
                listener(batch)
            self._wake_waiters()
            await self._give_way()

    def compare(self, progress: Progress) -> None:
        """Compare the image's digest with the controller's at the same index.

        Raises:
            ImageDivergedError: the digests differ.
        """
        image = self._image
        if progress.digest and progress.commit_index == image.index and progress.digest != image.digest:
            raise ImageDivergedError(f"the digest at index {image.index} differs from the controller's")

    async def wait_for(self, index: int, deadline_ms: int | None = None) -> None:
        """See `SubscriptionClient.wait_for`."""
        if self._image.index >= index:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters_made += 1
        heapq.heappush(self._waiters, (index, self._waiters_made, reached))
        try:
            async with asyncio.timeout(None if deadline_ms is None else deadline_ms / 1000):
                await reached
        except TimeoutError:
            raise MetadataLagError(
                f"the image is at {self._image.index} and did not reach {index} within {deadline_ms} ms; "
                "is a controller reachable?"
            ) from None

    def fail_waiters(self) -> None:
        """Fail all waiters, because the subscription was closed."""
        for _, _, reached in self._waiters:
            if not reached.done():
                reached.set_exception(MetadataLagError("the subscription was closed"))
        self._waiters.clear()

    def _wake_waiters(self) -> None:
        while self._waiters and self._waiters[0][0] <= self._image.index:
            _, _, reached = heapq.heappop(self._waiters)
            if not reached.done():
                reached.set_result(None)


def _incarnation_of(image: MetadataImage) -> int:
    cluster = cluster_of(image)
    return 0 if cluster is None else cluster.incarnation
