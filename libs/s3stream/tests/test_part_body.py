"""Request body of a part: it sends the right bytes, and reads no buffer after all bytes may have been
sent.
"""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from s3stream.stores.part_body import COPIED_BYTES, PIECE_BYTES, PartBody


@pytest.mark.parametrize("size_bytes", [1, PIECE_BYTES, COPIED_BYTES + 1, 5 * PIECE_BYTES + 17])
async def test_the_end_of_a_body_is_a_copy(size_bytes: int) -> None:
    memory = bytearray(b"a" * size_bytes)
    buffers = [memoryview(memory)[: size_bytes // 2], memoryview(memory)[size_bytes // 2 :]]
    handed_over = [piece async for piece in PartBody(buffers)]
    assert b"".join(handed_over) == bytes(memory)
    memory[:] = b"b" * size_bytes
    late = b"".join(handed_over)
    assert late[-COPIED_BYTES:] == b"a" * min(size_bytes, COPIED_BYTES)
    assert late[:-COPIED_BYTES].count(b"a") <= PIECE_BYTES, "the rest is not copied, except for small buffers"


def test_a_server_never_accepts_a_cancelled_body_with_overwritten_bytes() -> None:
    """The call is cancelled after everything was handed over and before the server read it; then
    the owner overwrites the buffer.
    """

    async def story() -> None:
        size_bytes = 8 * PIECE_BYTES
        memory = bytearray(b"a" * size_bytes)
        received, may_read, ended = bytearray(), asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while (
                len(received) < size_bytes - PIECE_BYTES
            ):  # until the rest fits into the connection's buffer
                received.extend(await reader.read(1 << 16))
            await may_read.wait()
            while data := await reader.read(1 << 16):
                received.extend(data)
            ended.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 12)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        async for piece in PartBody([memoryview(memory)]):
            await writer.drain()
            writer.write(piece)
        writer.close()
        memory[:] = b"b" * size_bytes
        may_read.set()
        await ended.wait()
        assert received == b"a" * size_bytes
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())
