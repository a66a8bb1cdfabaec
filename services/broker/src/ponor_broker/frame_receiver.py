"""From received bytes to request frames, with bounded memory and without a copy of large frames.

What lives here: the state of one connection's incoming bytes; pure, no sockets. Small frames are copied out of the loop's shared scratch;
a frame that is not complete gets a buffer of its own, into which the kernel then writes directly. An idle connection holds nothing.

A length is a claim: memory is taken as bytes arrive (1 MiB first, then in growing steps), so that a client cannot make the broker
allocate what it does not send. The claim itself is charged to a budget by the owner before the first byte of a large frame is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from ponor_kafka.errors import KafkaWireError

LENGTH_BYTES: Final = 4
FIRST_BUFFER_BYTES: Final = 1 << 20
GROWTH: Final = 4

OnFrame: TypeAlias = Callable[[bytearray], None]
Admit: TypeAlias = Callable[[int], bool]
"""Asked once per frame, with its length, before memory is taken: False stops the receiver until `resume`."""


class FrameReceiver:
    """Cuts a connection's bytes into frames.

    `on_frame` gets each frame without its length field, in a writable buffer of its own. A frame below `frame_bytes_min` (0 included)
    or above `frame_bytes_max` raises KafkaWireError: the connection cannot be trusted any further.
    """

    __slots__ = (
        "_admit",
        "_filled",
        "_frame",
        "_frame_length",
        "_frame_max",
        "_on_frame",
        "_stash",
        "blocked",
    )

    def __init__(self, on_frame: OnFrame, admit: Admit, *, frame_bytes_max: int) -> None:
        self._on_frame = on_frame
        self._admit = admit
        self._frame_max = frame_bytes_max
        self._frame: bytearray | None = None
        self._frame_length = 0
        self._filled = 0
        self._stash = b""  # an incomplete length field; while blocked, everything that was received
        self.blocked = False
        """Waiting for `resume`: no bytes may be given meanwhile."""

    @property
    def is_mid_frame(self) -> bool:
        """Whether a part of a frame has arrived."""
        return self._frame is not None or bool(self._stash)

    @property
    def claimed_bytes(self) -> int:
        """Length of the frame that is arriving, admitted but not delivered; 0 for none."""
        return self._frame_length if self._frame is not None else 0

    def own_buffer(self) -> memoryview | None:
        """Where the next bytes should be received: the rest of the present frame's buffer, None for the shared scratch."""
        return None if self._frame is None else memoryview(self._frame)[self._filled :]

    def received_own(self, count: int) -> None:
        """`count` bytes were written into `own_buffer`.

        Raises:
            KafkaWireError: never here; of `on_frame` only.
        """
        self._filled += count
        self._finish_if_full()

    def received(self, data: memoryview) -> None:
        """Bytes arrived in somebody else's buffer; what is needed of them is copied.

        Raises:
            KafkaWireError: a length is out of bounds.
        """
        assert not self.blocked
        if self._stash:
            data = memoryview(self._stash + bytes(data))
            self._stash = b""
        at, size = 0, len(data)
        while at < size:
            if self._frame is not None:
                at += self._fill(data[at:])
                continue
            if size - at < LENGTH_BYTES:
                self._stash = bytes(data[at:])
                return
            length = self._checked_length(data, at)
            if not self._admit(length):
                self.blocked = True
                self._stash = bytes(data[at:])
                return
            at += LENGTH_BYTES
            if size - at >= length:
                self._on_frame(bytearray(data[at : at + length]))
                at += length
            else:
                self._begin(length)

    def resume(self) -> None:
        """The frame that was not admitted is now (its owner has charged it).

        Raises:
            KafkaWireError: a later length is out of bounds.
        """
        assert self.blocked
        self.blocked = False
        data = memoryview(self._stash)
        self._stash = b""
        self._begin(self._checked_length(data, 0))
        self.received(data[LENGTH_BYTES:])

    def _checked_length(self, data: memoryview, at: int) -> int:
        length = int.from_bytes(data[at : at + LENGTH_BYTES], "big", signed=True)
        if not 0 < length <= self._frame_max:
            raise KafkaWireError(
                f"a frame claims {length} bytes; socket.request.max.bytes is {self._frame_max}"
            )
        return length

    def _begin(self, length: int) -> None:
        self._frame_length = length
        self._frame = bytearray(min(length, FIRST_BUFFER_BYTES))
        self._filled = 0

    def _fill(self, data: memoryview) -> int:
        assert self._frame is not None
        count = min(len(data), len(self._frame) - self._filled)
        self._frame[self._filled : self._filled + count] = data[:count]
        self._filled += count
        self._finish_if_full()
        return count

    def _finish_if_full(self) -> None:
        frame = self._frame
        assert frame is not None
        if self._filled < len(frame):
            return
        if self._filled == self._frame_length:
            self._frame = None
            self._on_frame(frame)
            return
        grown = bytearray(min(self._frame_length, len(frame) * GROWTH))
        grown[: self._filled] = frame
        self._frame = grown
