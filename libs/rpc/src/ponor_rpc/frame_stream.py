"""One gRPC call as a connection of the network port.

What lives here: how frames are read from and written to a call so that a cancelled caller loses nothing, and how every way in which
a call can end becomes a `ConnectionClosedError`. Where calls come from is `grpc_network`.

grpc.aio cancels a whole call when the task that reads from it is cancelled (a timeout around `receive` would kill the connection), and
allows one read and one write at a time. Therefore one task of the stream's own reads a little ahead and another writes a little behind: a caller
that gives up leaves them alone, and a frame costs no task. A frame that finds nothing before it does not wait for the writer's turn: its write begins in the sender
(`begun_write`), the writer waits for its end.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio
from ponor_runtime.network import FRAME_BYTES_MAX, ConnectionClosedError

from ponor_rpc.begun_write import BegunWrite

CLOSE_GRACE_SECONDS: Final = 0.25
"""How long a closing side waits for frames that were handed over to reach the peer."""
READ_AHEAD_FRAMES: Final = 16
READ_AHEAD_BYTES: Final = 256 * 1024
"""At either of them no further frame is read until one is taken: then the peer waits, as flow control demands."""
TURNS_BEFORE_READING: Final = 2
"""How many turns of the loop the next read waits: to begin it costs more than most frames do, and whoever got this one, and whomever that wakes, goes first."""
UNSENT_BYTES_MAX: Final = 256 * 1024
"""At so many bytes that gRPC has not taken yet, a sender waits; a larger frame goes alone."""

END_OF_CALL: Final = (
    grpc.RpcError,
    grpc.aio.UsageError,
    grpc.aio.BaseError,
    asyncio.InvalidStateError,
    asyncio.CancelledError,
)
"""What grpc.aio raises from a read or a write when the call is over: by status, by misuse after the end, or by cancellation."""


class FrameStream(ABC):
    """The two directions of one call. Fulfils `ponor_runtime.network.Connection` together with a subclass's `close`."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._end_reason: str | None = None
        self._closed_here = False
        self._arrived: deque[bytes] = deque()
        self._arrived_bytes = 0
        self._read_all = False
        self._reader: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        self._unsent: deque[bytes] = deque()
        """The first is being written."""
        self._begun: BegunWrite | None = None
        self._unsent_bytes = 0
        self._takes_frames = True
        self._writer: asyncio.Task[None] | None = None
        self._work = asyncio.Event()
        self._sent = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        """See `Connection.send`. A frame that was handed over is delivered, or the connection ends.

        Raises:
            ValueError: the frame is larger than FRAME_BYTES_MAX.
        """
        size_bytes = _checked_bytes(frame)
        self._raise_if_ended()
        while self._unsent and self._unsent_bytes + size_bytes > UNSENT_BYTES_MAX:
            self._sent.clear()
            await self._sent.wait()
            self._raise_if_ended()
        self._take(frame, size_bytes)

    def try_send(self, frame: bytes) -> bool:
        """See `Connection.try_send`."""
        size_bytes = _checked_bytes(frame)
        if self._unsent or self._end_reason is not None:
            return False
        self._take(frame, size_bytes)
        return True

    def _take(self, frame: bytes, size_bytes: int) -> None:
        self._unsent.append(frame)
        self._unsent_bytes += size_bytes
        if len(self._unsent) == 1:
            self._begun = BegunWrite(self._write(frame))
        if self._writer is None:
            self._writer = self._loop.create_task(self._write_all(), name="grpc-write")
        self._work.set()

    async def receive(self) -> bytes:
        """See `Connection.receive`. A cancelled receiver loses no frame; those that came before the peer's end are still given."""
        while self._closed_here or not self._arrived:
            if self._closed_here or self._read_all:
                self._raise_if_ended()
            self._start_reading()
            self._news.clear()
            await self._news.wait()
        frame = self._arrived.popleft()
        self._arrived_bytes -= len(frame)
        self._taken.set()
        return frame

    def _start_reading(self) -> None:
        if self._reader is None:
            self._reader = self._loop.create_task(self._read_ahead(), name="grpc-read")

    async def _read_ahead(self) -> None:
        while (frame := await self._read_frame()) is not None:
            self._arrived.append(frame)
            self._arrived_bytes += len(frame)
            self._news.set()
            for _ in range(TURNS_BEFORE_READING):
                await asyncio.sleep(0)
            while len(self._arrived) >= READ_AHEAD_FRAMES or self._arrived_bytes >= READ_AHEAD_BYTES:
                self._taken.clear()
                await self._taken.wait()
        self._read_all = True
        self._ended(self._status())

    async def _write_all(self) -> None:
        while True:
            while self._unsent:
                frame = self._unsent[0]
                begun, self._begun = self._begun, None
                if not await self._is_written(self._write(frame) if begun is None else begun):
                    self._takes_frames = False
                    self._ended("the call ended while a frame was being sent")
                    return
                self._unsent.popleft()
                self._unsent_bytes -= len(frame)
                self._sent.set()
            self._work.clear()
            await self._work.wait()

    async def _drain(self) -> None:
        """Until everything that was handed over is gRPC's, or cannot be any more."""
        while self._unsent and self._takes_frames:
            self._sent.clear()
            await self._sent.wait()

    async def _read_frame(self) -> bytes | None:
        try:
            frame = await self._read()
        except END_OF_CALL as error:
            self._note(error)
            return None
        # Identity deserializers: a frame is the bytes that the peer sent. EOF is an object of grpc's own.
        return frame if isinstance(frame, bytes) else None

    async def _is_written(self, write: Awaitable[None]) -> bool:
        try:
            await write
        except END_OF_CALL as error:
            self._note(error)
            return False
        return True

    def _note(self, error: BaseException) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            self._ended(f"{error.code().name}: {error.details()}")

    def _ended(self, reason: str) -> None:
        if self._end_reason is None:
            self._end_reason = reason
        self._news.set()
        self._sent.set()

    def _close_here(self, reason: str) -> None:
        """This side ends it: whoever waits is told, and what arrived is of no use any more."""
        self._closed_here = True
        self._ended(reason)

    def _raise_if_ended(self) -> None:
        if self._end_reason is not None:
            raise ConnectionClosedError(f"connection with {self._peer}: {self._end_reason}")

    async def _abandon(self) -> None:
        """Cancel what still reads or writes, and wait for it: no task outlives the call."""
        tasks = [task for task in (self._reader, self._writer) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._begun is not None:
            self._begun.close()

    @abstractmethod
    async def _read(self) -> Any:
        """Read from the call."""

    @abstractmethod
    async def _write(self, frame: bytes) -> None:
        """Write to the call."""

    @abstractmethod
    def _status(self) -> str:
        """Why the call ended without an error."""

    @abstractmethod
    async def close(self) -> None:
        """See `Connection.close`."""


def _checked_bytes(frame: bytes) -> int:
    size_bytes = len(frame)
    if size_bytes > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size_bytes} bytes is larger than {FRAME_BYTES_MAX}; split it")
    return size_bytes


class ClientStream(FrameStream):
    """The side that made the call."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[bytes, bytes],
        address: str,
        release: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(address)
        self._call = call
        self._release = release
        self._closing: asyncio.Task[None] | None = None

    async def _read(self) -> Any:
        return await self._call.read()

    async def _write(self, frame: bytes) -> None:
        await self._call.write(frame)

    def _status(self) -> str:
        return "closed by the peer"

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="grpc-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        already_over = self._end_reason is not None
        self._close_here("closed on this side")
        try:
            if not already_over and not self._call.done():
                async with asyncio.timeout(CLOSE_GRACE_SECONDS):
                    await self._drain()
                    await self._half_close()
                    await self._read_to_the_end()
        except TimeoutError:
            pass  # the peer is slow or gone: cut it off
        finally:
            self._call.cancel()
            await self._abandon()
            await self._release()

    async def _read_to_the_end(self) -> None:
        """The status comes only after the last frame was read."""
        self._start_reading()
        while not self._read_all:
            self._arrived.clear()
            self._arrived_bytes = 0
            self._taken.set()
            self._news.clear()
            await self._news.wait()

    async def _half_close(self) -> None:
        try:
            await self._call.done_writing()
        except END_OF_CALL:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise


class ServerStream(FrameStream):
    """The side that was called. The call lasts until `over` is set: by `close`, by the handler's return, or by the peer's end."""

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        super().__init__(context.peer())
        self._context = context
        self.over = asyncio.Event()

    async def _read(self) -> Any:
        return await self._context.read()

    async def _write(self, frame: bytes) -> None:
        await self._context.write(frame)

    def _status(self) -> str:
        return "closed by the peer"

    def end(self, reason: str) -> None:
        """No more frames; waiting receivers and senders are woken."""
        self._close_here(reason)
        self.over.set()

    async def settle(self) -> None:
        """Give what was handed over a moment to reach the peer, then leave nothing behind."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_GRACE_SECONDS):
                await self._drain()
        await self._abandon()

    async def close(self) -> None:
        self.end("closed on this side")
