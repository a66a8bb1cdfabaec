"""Splits a byte stream into frames: a four-byte big-endian length, then that many bytes.

No I/O happens here. A connection reads into a scratch buffer that all connections of a process share and hands it to
`feed`; every frame that comes out owns its exact bytes. While a frame is incomplete, `unfilled` offers the rest of its
own buffer, so that large frames can be received in place, without a copy through the scratch.
"""

from typing import Final

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import Buffer

LENGTH_BYTES: Final = 4
EAGER_BYTES_MAX: Final = 1 << 20
"""A frame up to this size gets its whole buffer at once; a larger one grows with what has really arrived."""


class FrameDecoder:
    """Decodes the frames of one connection. After a KafkaWireError the connection must be closed."""

    __slots__ = ("_filled", "_frame", "_frame_bytes_max", "_length", "_prefix")

    def __init__(self, frame_bytes_max: int) -> None:
        """`frame_bytes_max` bounds a frame without its length, as `socket.request.max.bytes` does."""
        self._frame_bytes_max = frame_bytes_max
        self._prefix = bytearray()
        self._length = 0
        self._frame: bytearray | None = None
        self._filled = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes held for the frame that is not complete yet."""
        return len(self._prefix) + (0 if self._frame is None else len(self._frame))

    def feed(self, data: Buffer) -> list[bytearray]:
        """Take the next bytes of the stream and return the frames they complete, oldest first.

        Raises KafkaWireError for a negative length and for one beyond the bound, before anything is allocated for it.
        """
        view = memoryview(data)
        frames: list[bytearray] = []
        pos = 0
        while pos < len(view):
            if self._frame is None:
                pos = self._start_frame(view, pos, frames)
            else:
                count = min(self._length - self._filled, len(view) - pos)
                self._reserve(self._filled + count)
                self._frame[self._filled : self._filled + count] = view[pos : pos + count]
                pos += count
                self._advance(count, frames)
        return frames

    def unfilled(self) -> memoryview | None:
        """The writable rest of the frame that is arriving; None while no frame is under way.

        Write into its front, release it, then tell `filled` how many bytes were written. It may be shorter than the
        frame's rest.
        """
        if self._frame is None:
            return None
        if self._filled == len(self._frame):
            self._reserve(min(self._length, 2 * self._filled))
        return memoryview(self._frame)[self._filled :]

    def filled(self, count: int) -> bytearray | None:
        """Account for `count` bytes written into `unfilled()`. Returns the frame once it is complete."""
        assert self._frame is not None
        assert 0 <= count <= len(self._frame) - self._filled
        frames: list[bytearray] = []
        self._advance(count, frames)
        return frames[0] if frames else None

    def _start_frame(self, view: memoryview, pos: int, frames: list[bytearray]) -> int:
        """Read a length; take the frame at once when all of it is here, else set it up as the arriving one."""
        if self._prefix or len(view) - pos < LENGTH_BYTES:
            count = min(LENGTH_BYTES - len(self._prefix), len(view) - pos)
            self._prefix += view[pos : pos + count]
            pos += count
            if len(self._prefix) < LENGTH_BYTES:
                return pos
            length = int.from_bytes(self._prefix, "big", signed=True)
            self._prefix.clear()
        else:
            length = int.from_bytes(view[pos : pos + LENGTH_BYTES], "big", signed=True)
            pos += LENGTH_BYTES
        if not 0 <= length <= self._frame_bytes_max:
            raise KafkaWireError(
                f"a frame of {length} bytes is outside the bounds 0 to {self._frame_bytes_max}"
            )
        if len(view) - pos >= length:
            frames.append(bytearray(view[pos : pos + length]))
            return pos + length
        self._length = length
        self._filled = 0
        self._frame = bytearray(min(length, EAGER_BYTES_MAX))
        return pos

    def _reserve(self, size: int) -> None:
        """Make room for `size` bytes of the arriving frame, at least doubling so that copies stay few."""
        assert self._frame is not None
        if size > len(self._frame):
            grown = bytearray(min(self._length, max(size, 2 * len(self._frame))))
            grown[: self._filled] = memoryview(self._frame)[: self._filled]
            self._frame = grown

    def _advance(self, count: int, frames: list[bytearray]) -> None:
        assert self._frame is not None
        self._filled += count
        if self._filled == self._length:
            frames.append(self._frame)
            self._frame = None
