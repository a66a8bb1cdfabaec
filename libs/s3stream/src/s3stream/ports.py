"""What s3stream needs from the cluster: two ports that services implement over their controller session.

Errors: implementations raise the exceptions of `s3stream.errors`; a call whose outcome is unknown is retried by the implementation
under the same request id until it is known, so callers never see "maybe".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId

PIECES_MAX: Final = 64
"""Most pieces of one answer of the read index."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """Where a stream stands: readable offsets are [start_offset, end_offset), appended under `epoch`."""

    stream_id: StreamId
    epoch: StreamEpoch
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class StreamRange:
    """A contiguous piece [start_offset, end_offset) of one stream."""

    stream_id: StreamId
    epoch: StreamEpoch
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class UploadedObject:
    """An object in the store, ready to be committed. A stream object has one range, a stream set object any number."""

    object_id: ObjectId
    size_bytes: int
    ranges: tuple[StreamRange, ...]


@dataclass(frozen=True, slots=True)
class PreparedObjects:
    """A run of `count` object ids from `first_object_id` on, and where their objects belong."""

    first_object_id: ObjectId
    count: int
    namespace: str
    bucket_index: int


@dataclass(frozen=True, slots=True)
class ObjectPiece:
    """One answer of the read index: this object holds [start_offset, end_offset) of the stream asked for."""

    object_id: ObjectId
    namespace: str
    bucket_index: int
    size_bytes: int
    start_offset: int
    end_offset: int


class StreamManager(Protocol):
    """The life of streams."""

    async def create_streams(self, tags: Sequence[Mapping[str, str]]) -> list[StreamId]:
        """Make closed, empty streams at epoch -1, one per set of tags."""
        ...

    async def open_streams(self, streams: Sequence[tuple[StreamId, StreamEpoch]]) -> list[StreamState]:
        """Own streams at new epochs, all or none.

        Raises:
            StreamFencedError: one is at a newer epoch already.
            StreamNotClosedError: one is still open at an older epoch.
            StreamNotFoundError: one does not exist.
        """
        ...

    async def close_streams(self, streams: Sequence[StreamState]) -> None:
        """Give streams up at exactly these epochs and end offsets, all or none."""
        ...

    async def trim_streams(self, streams: Sequence[tuple[StreamId, StreamEpoch, int]]) -> None:
        """Drop data below new start offsets."""
        ...

    async def delete_streams(self, stream_ids: Sequence[StreamId]) -> None:
        """Delete streams; absent ones count as deleted."""
        ...

    def owned_streams(self) -> list[StreamState]:
        """Streams that the controller holds open at this node, from an image that shows this process's registration."""
        ...

    def exists(self, stream_id: StreamId) -> bool:
        """Whether the stream is in the image (a deleted one is not)."""
        ...


class ObjectManager(Protocol):
    """The life of objects, and the read index."""

    async def prepare_objects(self, count: int) -> PreparedObjects:
        """Reserve ids under a lease."""
        ...

    async def commit_upload(
        self, stream_set_object: UploadedObject | None, stream_objects: Sequence[UploadedObject]
    ) -> None:
        """Make objects visible and advance end offsets, atomically.

        Raises:
            PreparedExpiredError: the ids' lease ran out; nothing was committed, and the upload starts anew.
            CommitRefusedError: the controller refused; the node must stop (its state and the controller's differ).
        """
        ...

    async def find_objects(
        self, stream_id: StreamId, start_offset: int, end_offset: int, *, pieces_max: int = PIECES_MAX
    ) -> list[ObjectPiece]:
        """The read index: contiguous pieces from `start_offset` on, at most `pieces_max`, possibly ending short of `end_offset`.

        An empty answer while the stream reaches beyond `start_offset` means that the metadata lags: ask again.
        """
        ...
