"""What s3stream needs from the cluster: three ports that services implement over their controller session.

Errors: implementations raise the exceptions of `s3stream.errors`; a call whose outcome is unknown is retried by the implementation
under the same request id until it is known, so callers never see "maybe".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId, StreamEpoch, StreamId

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
    """One answer of the read index: this object holds [start_offset, end_offset) of the stream asked for.

    `range_count` are the ranges of all streams in it, by which the length of its index is foreseen; 0: not known.
    """

    object_id: ObjectId
    namespace: str
    bucket_index: int
    size_bytes: int
    start_offset: int
    end_offset: int
    range_count: int = 0


@dataclass(frozen=True, slots=True)
class WalName:
    """One write-ahead log in the object store: a node has one for each of its epochs. `namespace` is the cluster's origin namespace."""

    namespace: str
    node_id: NodeId
    epoch: NodeEpoch


@dataclass(frozen=True, slots=True)
class OpenWal:
    """A log that is not closed: slots below `trim_sequence` hold nothing that is not committed.

    As an image shows it that has the recovery's assignment: an older trim point may lie below slots that its owner deleted.
    """

    name: WalName
    trim_sequence: int


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

    async def close_streams(
        self, streams: Sequence[StreamState], *, recovered: WalName | None = None
    ) -> None:
        """Give streams up at exactly these epochs and end offsets, all or none.

        Args:
            streams: at most 1,000; those closed already at just these epochs and ends count as closed.
            recovered: the log whose owner's streams these are, when another process recovers it; None: the caller's own.

        Raises:
            StreamFencedError: one is at another epoch, or ends elsewhere.
            StreamNotFoundError: one does not exist.
            WalNotHeldError: the recovered log is closed, or another process recovers it now.
        """
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
        self,
        stream_set_object: UploadedObject | None,
        stream_objects: Sequence[UploadedObject],
        *,
        trim_sequence: int = 0,
        recovered: WalName | None = None,
    ) -> None:
        """Make objects visible, advance end offsets and move the log's trim point, atomically. The ids were prepared by the caller itself.

        Args:
            stream_set_object: at most one.
            stream_objects: any number.
            trim_sequence: with this commit the log in the object store, the caller's own or the recovered one, needs no slot below; 0 says
                nothing.
            recovered: the log whose owner's streams these ranges are of, when another process recovers it; None: the caller's own streams.

        Raises:
            PreparedExpiredError: the ids' lease ran out; nothing was committed, and the upload starts anew.
            CommitRefusedError: the controller refused; the node must stop (its state and the controller's differ).
            WalNotHeldError: the recovered log is closed, or another process recovers it now.
        """
        ...

    async def find_objects(
        self, stream_id: StreamId, start_offset: int, end_offset: int, *, pieces_max: int = PIECES_MAX
    ) -> list[ObjectPiece]:
        """The read index: contiguous pieces from `start_offset` on, at most `pieces_max`, possibly ending short of `end_offset`.

        An empty answer while the stream reaches beyond `start_offset` means that the metadata lags: ask again.
        """
        ...


class WalManager(Protocol):
    """The life of write-ahead logs in the object store."""

    async def open_wal(self) -> WalName:
        """The log of the caller's own epoch, which the controller lists as open when this returns; not before may a slot be put.

        Raises:
            StorageFailedError: the epoch is over.
        """
        ...

    async def close_wal(self, name: WalName, end_sequence: int) -> None:
        """The log is not needed any more: recovered, or left by its owner who acknowledges nothing more. Closed already: nothing happens.

        Args:
            name: the caller's own log, or one that it recovers.
            end_sequence: one past the last slot.

        Raises:
            StorageFailedError: the epoch is over.
            WalNotHeldError: another process recovers the log now.
        """
        ...

    async def verify_epoch(self) -> None:
        """Return if the caller's epoch was current and not fenced at a moment after this call: asked at the controller, never an image.

        Raises:
            StreamFencedError: the epoch is over.
        """
        ...

    def streams_of(self, name: WalName) -> list[StreamState]:
        """The streams that are open at the log's node and epoch, from an image that shows the recovery's assignment."""
        ...

    def may_delete_recovered(self) -> bool:
        """Whether slots of a recovered log may be deleted: not while a forced recovery of the controllers waits for confirmation."""
        ...
