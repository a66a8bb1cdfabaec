"""Ports to the cluster that s3stream needs. Services implement them over their controller session.

Implementations raise the exceptions of `s3stream.errors`. They retry a call with an unknown outcome
under the same request id until the outcome is known, so callers never get an uncertain result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ponor_runtime.identity import NodeEpoch, NodeId, ObjectId, StreamEpoch, StreamId

PIECES_MAX: Final = 64
"""Pieces in one answer of the read index."""


@dataclass(frozen=True, slots=True)
class StreamState:
    """State of a stream: offsets [start_offset, end_offset) are readable; its owner appends under `epoch`."""

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
    """An object in the store that is ready for commit. A stream object has one range, a stream set
    object any number.
    """

    object_id: ObjectId
    size_bytes: int
    ranges: tuple[StreamRange, ...]


@dataclass(frozen=True, slots=True)
class PreparedObjects:
    """`count` object ids from `first_object_id` on, and the namespace of their keys."""

    first_object_id: ObjectId
    count: int
    namespace: str
    bucket_index: int


@dataclass(frozen=True, slots=True)
class ObjectPiece:
    """One entry of a read index answer: this object contains [start_offset, end_offset) of the
    requested stream.

    `range_count` is the number of ranges of all streams in the object, from which readers estimate
    the length of its index; 0: unknown.
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
    """One write-ahead log in the object store; a node has one for each of its epochs. `namespace`
    is the cluster's origin namespace.
    """

    namespace: str
    node_id: NodeId
    epoch: NodeEpoch


@dataclass(frozen=True, slots=True)
class OpenWal:
    """A log that is not closed. Everything in slots below `trim_sequence` is committed.

    Read it from an image that shows the recovery's assignment. The trim point in an older image may
    be below slots that the owner has deleted since.
    """

    name: WalName
    trim_sequence: int


class StreamManager(Protocol):
    """Operations on streams."""

    async def create_streams(self, tags: Sequence[Mapping[str, str]]) -> list[StreamId]:
        """Create closed, empty streams at epoch -1, one for each set of tags."""
        ...

    async def open_streams(self, streams: Sequence[tuple[StreamId, StreamEpoch]]) -> list[StreamState]:
        """Open streams at new epochs, atomically.

        Raises:
            StreamFencedError: a stream is already at a newer epoch.
            StreamNotClosedError: a stream is still open at an older epoch.
            StreamNotFoundError: a stream does not exist.
        """
        ...

    async def close_streams(
        self, streams: Sequence[StreamState], *, recovered: WalName | None = None
    ) -> None:
        """Close streams at exactly these epochs and end offsets, atomically.

        Args:
            streams: at most 1,000. A stream that is already closed at the same epoch and end counts
                as closed.
            recovered: the log that the caller recovers, if its owner opened these streams; None: the
                caller opened them.

        Raises:
            StreamFencedError: a stream is at another epoch or ends at another offset.
            StreamNotFoundError: a stream does not exist.
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
        """Return the streams that are open at this node, from an image that contains this process's
        registration.
        """
        ...

    def exists(self, stream_id: StreamId) -> bool:
        """Whether the stream is in the image. A deleted stream is not."""
        ...


class ObjectManager(Protocol):
    """Operations on objects, and the read index."""

    async def prepare_objects(self, count: int) -> PreparedObjects:
        """Reserve object ids under a lease."""
        ...

    async def commit_upload(
        self,
        stream_set_object: UploadedObject | None,
        stream_objects: Sequence[UploadedObject],
        *,
        trim_sequence: int = 0,
        recovered: WalName | None = None,
    ) -> None:
        """Make prepared objects visible, advance end offsets and move the log's trim point, atomically.

        Args:
            stream_set_object: at most one.
            stream_objects: any number.
            trim_sequence: trim point of the log in the object store (the caller's own or the recovered
                one) after this commit; 0: unchanged.
            recovered: the log that the caller recovers, if the ranges belong to its owner's streams;
                None: they belong to the caller's streams.

        Raises:
            PreparedExpiredError: the ids expired; nothing was committed, and the upload restarts.
            CommitRefusedError: the controller refused; the node must stop, because its state
                differs from the controller's.
            WalNotHeldError: the recovered log is closed, or another process recovers it now.
        """
        ...

    async def find_objects(
        self, stream_id: StreamId, start_offset: int, end_offset: int, *, pieces_max: int = PIECES_MAX
    ) -> list[ObjectPiece]:
        """Return contiguous pieces from `start_offset` on, at most `pieces_max`; they may end
        before `end_offset`.

        An empty answer for a stream that extends beyond `start_offset` means that the metadata lag:
        retry.
        """
        ...


class WalManager(Protocol):
    """Operations on write-ahead logs in the object store."""

    async def open_wal(self) -> WalName:
        """Return the log of the caller's epoch after the controller lists it as open. No slot may
        be put before that.

        Raises:
            StorageFailedError: the epoch was replaced.
        """
        ...

    async def close_wal(self, name: WalName, end_sequence: int) -> None:
        """Close a log that was recovered, or whose owner acknowledges nothing more. Idempotent.

        Args:
            name: the caller's own log, or one that it recovers.
            end_sequence: one past the last slot.

        Raises:
            StorageFailedError: the epoch was replaced.
            WalNotHeldError: another process recovers the log now.
        """
        ...

    async def verify_epoch(self) -> None:
        """Return if the caller's epoch was current and not fenced at some time after the start of this call.
        The answer comes from the controller, never from an image.

        Raises:
            StreamFencedError: the epoch was replaced.
        """
        ...

    def streams_of(self, name: WalName) -> list[StreamState]:
        """The streams that are open at the log's node and epoch, from an image that shows the recovery's
        assignment.
        """
        ...

    def may_delete_recovered(self) -> bool:
        """Whether slots of a recovered log may be deleted. False while a forced recovery of the
        controllers waits for its confirmation.
        """
        ...
