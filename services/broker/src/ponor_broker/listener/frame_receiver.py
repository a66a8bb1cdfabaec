"""From received bytes to request frames, with bounded memory and exactly one copy of a frame that arrives whole.

What lives here: the state of one connection's incoming bytes; pure, no sockets. Frames that are complete in the loop's shared scratch are
copied out of it (the log cache keeps them); a frame that is not complete gets a buffer of its own, into which the kernel then writes
directly. An idle connection holds nothing.

A length is a claim: memory is taken as bytes arrive (1 MiB first, then in growing steps), so that a client cannot make the broker
allocate what it does not send. The claim itself is charged to a budget by the owner before the first byte of an incomplete frame is kept;
a complete frame claims nothing, its bytes are here.

Only Produce carries bulk. Every other request is decoded into objects, several times as large as a tiny array element on the wire, and is
therefore held to a smaller bound.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import KafkaWireError

LENGTH_BYTES: Final = 4
API_KEY_BYTES: Final = 2
FIRST_BUFFER_BYTES: Final = 1 << 20
GROWTH: Final = 4

_LENGTH: Final = Struct(">i")
_PRODUCE: Final = int(ApiKey.PRODUCE).to_bytes(API_KEY_BYTES, "big")

Admit: TypeAlias = Callable[[int], bool]
"""Asked once per frame that is not complete, with its length, before memory is taken: False stops the receiver until `resume`."""


class FrameReceiver:
    """Cuts a connection's bytes into frames: each without its length field, in a writable buffer of its own.

    A frame below one byte, above `frame_bytes_max`, or above `control_bytes_max` without being a Produce sets `failure`: the connection
    cannot be trusted any further. Frames that stood before it are returned all the same.
    """

    __slots__ = (
        "_admit",
        "_control_max",
        "_filled",
        "_frame",
        "_frame_length",
        "_frame_max",
        "_stash",
        "blocked",
        "failure",
    )

    def __init__(self, admit: Admit, *, frame_bytes_max: int, control_bytes_max: int) -> None:
        self._admit = admit
        self._frame_max = frame_bytes_max
        self._control_max = min(control_bytes_max, frame_bytes_max)
        self._frame: bytearray | None = None
        self._frame_length = 0
        self._filled = 0
        self._stash = b""  # an incomplete length field; while blocked, everything that was received
        self.blocked = False
        """Waiting for `resume`: no bytes may be given meanwhile."""
        self.failure: KafkaWireError | None = None
        """What makes the bytes useless; none may be given after it."""

    @property
    def is_mid_frame(self) -> bool:
        """Whether a part of a frame has arrived."""
        return self._frame is not None or bool(self._stash)

    def own_buffer(self) -> memoryview | None:
        """Where the next bytes should be received: the rest of the present frame's buffer, None for the shared scratch."""
        return None if self._frame is None else memoryview(self._frame)[self._filled :]

    def received_own(self, count: int) -> list[bytearray]:
        """`count` bytes were written into `own_buffer`. Returns the frame if they completed it."""
        frame = self._frame
        assert frame is not None
        self._filled += count
        if self._filled < len(frame):
            return []
        if self._filled == self._frame_length:
            self._frame = None
            return [frame]
        grown = bytearray(min(self._frame_length, len(frame) * GROWTH))
        grown[: self._filled] = frame
        self._frame = grown
        return []

    def received(self, data: memoryview, size: int) -> list[bytearray]:
        """The first `size` bytes of somebody else's buffer arrived; what is needed of them is copied. Returns the complete frames."""
        assert self._frame is None
        assert not self.blocked
        if not self._stash and size > LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(data)
            if 0 < length <= self._control_max and length + LENGTH_BYTES == size:
                return [
                    bytearray(data[LENGTH_BYTES:size])
                ]  # one frame and nothing else: who waits for answers sends so
        if self._stash:
            data = memoryview(self._stash + bytes(data[:size]))
            size = len(data)
            self._stash = b""
        return self._cut(data, 0, size)

    def resume(self) -> None:
        """The frame that was not admitted is now (its owner has charged it). It is not complete, so nothing stands behind it."""
        assert self.blocked
        self.blocked = False
        data, self._stash = memoryview(self._stash), b""
        (length,) = _LENGTH.unpack_from(data)
        self._begin(length, data, LENGTH_BYTES, len(data))

    def _cut(self, data: memoryview, at: int, size: int) -> list[bytearray]:
        frames: list[bytearray] = []
        length_at = _LENGTH.unpack_from
        while size - at >= LENGTH_BYTES:
            (length,) = length_at(data, at)
            begin = at + LENGTH_BYTES
            end = begin + length
            if (
                0 < length <= self._control_max or self._is_welcome(length, data, begin, size)
            ) and end <= size:
                frames.append(bytearray(data[begin:end]))
                at = end
                continue
            self._take_incomplete(length, data, at, size)
            return frames
        if at < size:
            self._stash = bytes(data[at:size])
        return frames

    def _take_incomplete(self, length: int, data: memoryview, at: int, size: int) -> None:
        """All bytes from `at` on belong to a frame that is not complete, or is refused, or cannot be judged yet."""
        begin = at + LENGTH_BYTES
        if self.failure is not None:
            return
        if length > self._control_max and size - begin < API_KEY_BYTES:
            self._stash = bytes(data[at:size])  # its first two bytes will say whether it may be so large
        elif self._admit(length):
            self._begin(length, data, begin, size)
        else:
            self.blocked = True
            self._stash = bytes(data[at:size])

    def _is_welcome(self, length: int, data: memoryview, begin: int, size: int) -> bool:
        """Whether a length outside the bound that holds for all requests is acceptable, as far as can be said; sets `failure`."""
        if not 0 < length <= self._frame_max:
            self.failure = KafkaWireError(
                f"a frame claims {length} bytes; socket.request.max.bytes is {self._frame_max}"
            )
        elif size - begin >= API_KEY_BYTES and data[begin : begin + API_KEY_BYTES] != _PRODUCE:
            self.failure = KafkaWireError(
                f"a request that is no Produce claims {length} bytes; control_request_bytes_max is {self._control_max}"
            )
        return self.failure is None

    def _begin(self, length: int, data: memoryview, begin: int, size: int) -> None:
        self._frame_length = length
        self._filled = size - begin
        if begin + length <= len(data):
            # What stands behind the received bytes is overwritten as the rest arrives; copying it costs less than clearing as much.
            self._frame = bytearray(data[begin : begin + length])
            return
        self._frame = bytearray(min(length, max(FIRST_BUFFER_BYTES, self._filled)))
        self._frame[: self._filled] = data[begin:size]
