"""The newest committed batches in memory, and the frames in which subscribers receive them.

The tail contains the running digest at every index. A frame is encoded once; every subscriber that needs a
frame from the same index receives the same bytes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from ponor.controller.v1 import subscription_service_pb2 as wire
from ponor_metadata.image.storage_native import untrack

FRAME_TARGET_BYTES = 1024 * 1024
"""Target size of a frame; a larger single batch gets its own frame."""
DIGEST_INTERVAL = 1_024
"""A frame ends at every multiple of this number, because subscribers compare the running digest at these
indices."""
ENCODED_FRAMES_MAX = 8
"""Bound of the encoded frames in memory. Subscribers are near the end of the log, so few frames are in
use."""


@dataclass(frozen=True, slots=True)
class RetainedBatch:
    """One committed batch and the running digest after it."""

    index: int
    data: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class BatchFrame:
    """An encoded SubscribeResponse with the batches from `first_index` to `last_index`, both included."""

    first_index: int
    last_index: int
    data: bytes


class RetainedTail:
    """The batches after `begin_index` up to `last_index`. Above a bound of bytes or number the oldest are
    dropped.
    """

    def __init__(self, begin_index: int, begin_digest: bytes, *, bytes_max: int, batches_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches_max = batches_max
        self._begin_index = begin_index
        self._begin_digest = begin_digest
        self._batches: deque[RetainedBatch] = deque()
        self._size_bytes = 0
        self._frames: OrderedDict[int, BatchFrame] = OrderedDict()

    @property
    def begin_index(self) -> int:
        """The lowest index from which a subscriber can continue from memory."""
        return self._begin_index

    @property
    def last_index(self) -> int:
        """The newest committed index."""
        return self._begin_index + len(self._batches)

    @property
    def last_digest(self) -> bytes:
        """The running digest at `last_index`."""
        return self._batches[-1].digest if self._batches else self._begin_digest

    @property
    def size_bytes(self) -> int:
        """Size of all batches in the tail."""
        return self._size_bytes

    def append(self, batch: RetainedBatch) -> None:
        """Add the next batch and drop old ones beyond the bounds."""
        assert batch.index == self.last_index + 1, f"batch {batch.index} does not follow {self.last_index}"
        untrack(batch)  # there may be 200,000, and none is part of a cycle
        self._batches.append(batch)
        self._size_bytes += len(batch.data)
        while self._size_bytes > self._bytes_max or len(self._batches) > self._batches_max:
            oldest = self._batches.popleft()
            self._size_bytes -= len(oldest.data)
            self._begin_index, self._begin_digest = oldest.index, oldest.digest
            self._frames.pop(oldest.index, None)

    def restart(self, index: int, digest: bytes) -> None:
        """Continue after a received snapshot has replaced the log up to `index`. Subscribers at earlier
        indices cannot continue.

        Raises:
            AssertionError: the snapshot is older than a batch that was committed here.
        """
        assert index >= self.last_index, f"a snapshot at {index} is older than batch {self.last_index}"
        self._batches.clear()
        self._frames.clear()
        self._size_bytes = 0
        self._begin_index, self._begin_digest = index, digest

    def digest_at(self, index: int) -> bytes | None:
        """The running digest at `index`; None if the index is not in the tail."""
        if index == self._begin_index:
            return self._begin_digest
        if not self._begin_index < index <= self.last_index:
            return None
        return self._batches[index - self._begin_index - 1].digest

    def frame_after(self, index: int) -> BatchFrame | None:
        """The next frame for a subscriber that has applied `index`; None if there is none.

        Raises:
            LookupError: the batch after `index` was dropped.
        """
        if index == self.last_index:
            return None
        if not self._begin_index <= index < self.last_index:
            raise LookupError(f"batch {index + 1} is not within {self._begin_index + 1}..{self.last_index}")
        cached = self._frames.get(index + 1)
        if cached is not None:
            return cached
        frame = self._encode_from(index + 1)
        self._frames[index + 1] = frame
        if len(self._frames) > ENCODED_FRAMES_MAX:
            self._frames.popitem(last=False)
        return frame

    def _encode_from(self, first_index: int) -> BatchFrame:
        position = first_index - self._begin_index - 1
        message = wire.Batches(first_index=first_index)
        size_bytes = 0
        while position < len(self._batches):
            batch = self._batches[position]
            if size_bytes and size_bytes + len(batch.data) > FRAME_TARGET_BYTES:
                break
            message.batches.append(batch.data)
            message.digest = batch.digest
            size_bytes += len(batch.data)
            position += 1
            if batch.index % DIGEST_INTERVAL == 0:
                break
        response = wire.SubscribeResponse(batches=message)
        return BatchFrame(first_index, self._begin_index + position, response.SerializeToString())
