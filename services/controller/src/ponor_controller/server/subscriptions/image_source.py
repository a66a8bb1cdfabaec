"""The encoded image for new subscribers. All that connect within a short time share one encoding.

The image is encoded in slices of time, so that the event loop is not blocked. `ponor_metadata.snapshot`
defines the format.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.snapshot import begin_snapshot
from ponor_metadata.nouns.cluster import cluster_of
from ponor_runtime.clock import Clock

SLICE_NS: Final = 5_000_000
"""Time in ns for which the encoding occupies the event loop before it yields."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An encoded image as of `index`. `digest`: the running digest there; `pieces` joined: the body."""

    index: int
    incarnation: int
    digest: bytes
    size_bytes: int
    pieces: tuple[bytes, ...]


class ImageSource:
    """Encodes the committed image. An encoding is reused while all batches after it are in memory."""

    def __init__(self, image: MetadataImage, clock: Clock) -> None:
        self._image = image
        self._clock = clock
        self._newest: EncodedImage | None = None
        self._encoding = asyncio.Lock()

    @property
    def incarnation(self) -> int:
        """Incarnation of the cluster in the committed image."""
        cluster = cluster_of(self._image)
        return 0 if cluster is None else cluster.incarnation

    async def at_least(self, index: int) -> EncodedImage:
        """Return an encoding of the image at `index` or later. `index` must be committed here."""
        async with self._encoding:
            newest = self._newest
            if newest is None or newest.index < index or newest.incarnation != self.incarnation:
                newest = self._newest = await self._encode()
            return newest

    def forget_before(self, index: int) -> None:
        """Drop an encoding that is older than `index`, because batches after it are no longer in memory and
        no subscriber could continue from it.
        """
        if self._newest is not None and self._newest.index < index:
            self._newest = None

    async def _encode(self) -> EncodedImage:
        incarnation = self.incarnation
        encoding = begin_snapshot(self._image)
        pieces: list[bytes] = []
        slice_began_ns = self._clock.monotonic_ns()
        while (piece := encoding.next_chunk()) is not None:
            pieces.append(piece)
            if self._clock.monotonic_ns() - slice_began_ns >= SLICE_NS:
                await self._clock.sleep(0)
                slice_began_ns = self._clock.monotonic_ns()
        return EncodedImage(encoding.index, incarnation, encoding.digest, encoding.size_bytes, tuple(pieces))
