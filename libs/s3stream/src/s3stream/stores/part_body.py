"""Request body of an upload by aiobotocore: passes the buffers on in pieces, without joining them.

Joining 16 MiB into one `bytes` would copy them twice into fresh memory, here and in the transport's
buffer, which costs more than sending them. aiohttp iterates over this body and waits for the
connection between pieces. botocore needs the length, and reads and rewinds the body if payloads are
signed.

The caller may reuse the buffers as soon as the call has ended, even after a failure. A closed
connection may then still send bytes that it accepted during the call. These can only be the last
`COPIED_BYTES` of a body that the server stores, because aiohttp waits for the connection to drain
after every piece, and a server stores only complete bodies. The end of a body is therefore sent from
a copy, so the server stores the bytes of the call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from ponor_runtime.disk import Buffer

from s3stream.stores.buffers import joined, total_bytes

PIECE_BYTES: Final = 1024 * 1024
"""Bytes queued in one write, by reference and not as a copy. A quarter of this costs a tenth more CPU."""

COPIED_BYTES: Final = 2 * PIECE_BYTES
"""Larger than the last piece plus what a drained connection may still hold of earlier ones (64
KiB). For a part of 64 MiB, this copies a thirtieth of the bytes."""


class PartBody:
    """A readable file over buffers."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._buffers = [memoryview(buffer) for buffer in joined(buffers)]
        self._size_bytes = total_bytes(self._buffers)
        self._position = 0

    def __len__(self) -> int:
        return self._size_bytes

    def __bool__(self) -> bool:
        return True

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        kept_from = max(self._size_bytes - COPIED_BYTES, 0)
        for piece in self._pieces(0, kept_from):
            yield piece
        for piece in self._pieces(kept_from, self._size_bytes):
            yield memoryview(bytes(piece))

    def tell(self) -> int:
        """Position of the next read."""
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        """Set the position."""
        assert whence in {0, 2}, "whence must be 0 (the beginning) or 2 (the end)"
        self._position = position + (self._size_bytes if whence else 0)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return bytes for a checksum. Sending does not use this method."""
        end = self._size_bytes if size < 0 else min(self._position + size, self._size_bytes)
        data = b"".join(self._pieces(self._position, end))
        self._position = end
        return data

    def _pieces(self, start: int, end: int) -> Iterator[memoryview]:
        """Yield bytes [start, end) in pieces of at most `PIECE_BYTES`."""
        first = 0
        for buffer in self._buffers:
            begin, stop = max(start - first, 0), min(end - first, len(buffer))
            for at in range(begin, stop, PIECE_BYTES):
                yield buffer[at : min(at + PIECE_BYTES, stop)]
            first += len(buffer)
