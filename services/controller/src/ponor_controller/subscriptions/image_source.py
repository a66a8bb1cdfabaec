"""The encoded image that new subscribers and snapshot files begin with.

What lives here: one cache, because encoding the image is the only thing in the controller that takes time in proportion to the cluster. The body's
format belongs to `ponor_metadata.snapshot`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ponor_metadata import snapshot
from ponor_metadata.image import MetadataImage


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image as of `index`, encoded; `digest` is the running digest there."""

    index: int
    cluster_time_ms: int
    digest: bytes
    data: bytes


class ImageSource:
    """Encodes the committed image when nobody did so recently."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._newest: EncodedImage | None = None

    def fresh(self) -> EncodedImage:
        """The image as it is now. Blocks the loop while it encodes (about 1.5 us per row)."""
        if self._newest is None or self._newest.index != self._image.index:
            self._newest = EncodedImage(
                self._image.index,
                self._image.cluster_time_ms,
                self._image.digest,
                snapshot.encode(self._image),
            )
        return self._newest

    def at_least(self, index: int) -> EncodedImage:
        """An encoding from which a subscriber can go on, given that batches after `index` are still in memory."""
        if self._newest is not None and self._newest.index >= index:
            return self._newest
        return self.fresh()
