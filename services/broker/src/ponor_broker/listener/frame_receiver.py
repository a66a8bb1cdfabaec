"""Assembly of received bytes into request frames, with bounded memory and one copy per complete frame.

State of one connection's incoming bytes, without sockets. Frames that are complete in the event loop's shared
buffer are copied out of it (the log cache keeps them). An incomplete frame gets its own buffer, into which
the kernel then writes directly. An idle connection holds no buffer.

A client may send a length and then no bytes. Memory is therefore allocated as bytes arrive (1 MiB first, then
in growing steps). The owner charges the announced length to a budget before an incomplete frame is kept; a
complete frame needs no such charge.

Only Produce may be large. Every other request is decoded into objects that are several times larger than its
bytes, and therefore has a smaller bound.
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
"""Called once per incomplete frame, with its length, before memory is allocated. False blocks the receiver
until `resume`."""


class FrameReceiver:
    """Cuts a connection's bytes into frames, each without its length field, in its own writable buffer.

    A frame of length 0 or less, above `frame_bytes_max`, or (except a Produce) above `control_bytes_max` sets
    `failure`: no further bytes of the connection can be parsed. Frames before it are still returned.
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
        """Whether the receiver waits for `resume`: the owner must pass in no bytes in the meantime."""
        self.failure: KafkaWireError | None = None
        """Why the bytes cannot be parsed; after that, the owner must pass in no bytes."""

    def limit(self, frame_bytes_max: int, control_bytes_max: int) -> None:
        """Replace both bounds; they apply to frames whose length has not been read yet."""
        self._frame_max = frame_bytes_max
        self._control_max = min(control_bytes_max, frame_bytes_max)

    @property
    def is_mid_frame(self) -> bool:
        """Whether part of a frame has arrived."""
        return self._frame is not None or bool(self._stash)

    def own_buffer(self) -> memoryview | None:
        """Return the buffer for the next bytes: the rest of the current frame's buffer, or None for the
        shared buffer.
        """
        return None if self._frame is None else memoryview(self._frame)[self._filled :]

    def received_own(self, count: int) -> list[bytearray]:
        """Record that `count` bytes were written into `own_buffer`; return the frame if it is complete."""
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
        """Process the first `size` bytes of a shared buffer and copy the needed ones; return the complete
        frames.
        """
        assert self._frame is None
        assert not self.blocked
        if not self._stash and size > LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(data)
            if 0 < length <= self._control_max and length + LENGTH_BYTES == size:
                return [
                    bytearray(data[LENGTH_BYTES:size])
                ]  # exactly one frame: the usual case of a client that waits for answers
        if self._stash:
            data = memoryview(self._stash + bytes(data[:size]))
            size = len(data)
            self._stash = b""
        return self._cut(data, 0, size)

    def resume(self) -> None:
        """Continue with the frame that `admit` refused; the owner has charged it now. The frame is
        incomplete, so no received bytes follow it.
        """
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
                0 < length <= self._control_max or self._is_admitted(length, data, begin, size)
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
        """Store the bytes of an incomplete frame from `at` on. If `failure` is set, drop them."""
        begin = at + LENGTH_BYTES
        if self.failure is not None:
            return
        if length > self._control_max and size - begin < API_KEY_BYTES:
            # the API key in the first two bytes decides whether the frame may be this large
            self._stash = bytes(data[at:size])
        elif self._admit(length):
            self._begin(length, data, begin, size)
        else:
            self.blocked = True
            self._stash = bytes(data[at:size])

    def _is_admitted(self, length: int, data: memoryview, begin: int, size: int) -> bool:
        """Return whether a length outside 1 to `control_bytes_max` is acceptable, as far as the received
        bytes show; if not, set `failure`.
        """
        if not 0 < length <= self._frame_max:
            self.failure = KafkaWireError(
                f"a frame has a length of {length} bytes; socket.request.max.bytes is {self._frame_max}"
            )
        elif size - begin >= API_KEY_BYTES and data[begin : begin + API_KEY_BYTES] != _PRODUCE:
            self.failure = KafkaWireError(
                f"a request other than Produce has a length of {length} bytes; control_request_bytes_max"
                f" is {self._control_max}"
            )
        return self.failure is None

    def _begin(self, length: int, data: memoryview, begin: int, size: int) -> None:
        self._frame_length = length
        self._filled = size - begin
        if begin + length <= len(data):
            # Copy the whole length, although only `_filled` bytes were received: later bytes overwrite the
            # rest, and a copy is cheaper than a cleared buffer.
            self._frame = bytearray(data[begin : begin + length])
            return
        self._frame = bytearray(min(length, max(FIRST_BUFFER_BYTES, self._filled)))
        self._frame[: self._filled] = data[begin:size]
