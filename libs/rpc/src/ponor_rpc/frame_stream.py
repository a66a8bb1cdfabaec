"""One gRPC call as a connection of the network port.

grpc.aio cancels a whole call when the task that reads from it is cancelled (so a timeout around `receive`
would end the connection), and allows one read and one write at a time. Therefore each stream has one task
that reads ahead and one that writes queued frames. Cancelling a caller does not affect these tasks, and no
task is created per frame.
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
from ponor_runtime.network import FRAME_BYTES_MAX, ConnectionClosedError, FrameTooLargeError

from ponor_rpc.eager_write import EagerWrite

CLOSE_GRACE_SECONDS: Final = 0.25
"""How long `close` waits until the queued frames have reached the peer."""
READ_AHEAD_FRAMES: Final = 16
READ_AHEAD_BYTES: Final = 256 * 1024
"""At either limit the reader pauses until `receive` takes a frame; flow control then blocks the peer."""
TURNS_BEFORE_READING: Final = 2
"""Turns of the event loop before the next read begins. Starting a read takes longer than handling most
frames, so the receiver and the tasks that it wakes run first."""
UNSENT_BYTES_MAX: Final = 256 * 1024
"""A sender waits while this many bytes are queued for gRPC. A larger frame is sent when the queue is
empty."""

END_OF_CALL: Final = (
    grpc.RpcError,
    grpc.aio.UsageError,
    grpc.aio.BaseError,
    asyncio.InvalidStateError,
    asyncio.CancelledError,
)
"""Exceptions that reads and writes of grpc.aio raise after the call has ended: an error status, use of an
ended call, cancellation."""


class FrameStream(ABC):
    """Both directions of one call.

    A subclass's `close` completes the `ponor_runtime.network.Connection` protocol.
    """

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
        """Queued frames. The writer task is writing the first one."""
        self._begun: EagerWrite | None = None
        self._unsent_bytes = 0
        self._takes_frames = True
        self._writer: asyncio.Task[None] | None = None
        self._work = asyncio.Event()
        self._sent = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        """Send a frame; wait while the queue is full. After that the frame is delivered unless the connection
        ends.

        Raises:
            FrameTooLargeError: the frame is larger than FRAME_BYTES_MAX.
        """
        size_bytes = _checked_bytes(frame)
        self._raise_if_ended()
        while self._unsent and self._unsent_bytes + size_bytes > UNSENT_BYTES_MAX:
            self._sent.clear()
            await self._sent.wait()
            self._raise_if_ended()
        self._take(frame, size_bytes)

    def try_send(self, frame: bytes) -> bool:
        """Send a frame without waiting if no earlier frame is queued; otherwise return False."""
        size_bytes = _checked_bytes(frame)
        if self._unsent or self._end_reason is not None:
            return False
        self._take(frame, size_bytes)
        return True

    def _take(self, frame: bytes, size_bytes: int) -> None:
        self._unsent.append(frame)
        self._unsent_bytes += size_bytes
        if len(self._unsent) == 1:
            # No frame is queued: start the write here instead of waiting for the writer task.
            self._begun = EagerWrite(self._write(frame))
        if self._writer is None:
            self._writer = self._loop.create_task(self._write_all(), name="grpc-write")
        self._work.set()

    async def receive(self) -> bytes:
        """Return the next frame. Frames that arrived before the peer ended the call are still returned.

        If the caller is cancelled, no frame is lost.
        """
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
        """Wait until gRPC has taken all queued frames, or accepts no more frames."""
        while self._unsent and self._takes_frames:
            self._sent.clear()
            await self._sent.wait()

    async def _read_frame(self) -> bytes | None:
        try:
            frame = await self._read()
        except END_OF_CALL as error:
            self._note(error)
            return None
        # There is no deserializer, so a frame is the bytes that the peer sent. At the end gRPC returns its
        # EOF object.
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
        """End the connection on this side: wake all waiting callers and discard received frames."""
        self._closed_here = True
        self._ended(reason)

    def _raise_if_ended(self) -> None:
        if self._end_reason is not None:
            raise ConnectionClosedError(f"connection with {self._peer}: {self._end_reason}")

    async def _abandon(self) -> None:
        """Cancel the reader and the writer and wait for them, so that no task outlives the call."""
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
        """Return the reason to report if the call ended without an error."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection; idempotent."""


def _checked_bytes(frame: bytes) -> int:
    size_bytes = len(frame)
    if size_bytes > FRAME_BYTES_MAX:
        raise FrameTooLargeError(
            f"a frame of {size_bytes} bytes exceeds the limit of {FRAME_BYTES_MAX} bytes; split it"
        )
    return size_bytes


class ClientStream(FrameStream):
    """The calling side."""

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
            pass  # the peer is slow or gone, so cancel the call
        finally:
            self._call.cancel()
            await self._abandon()
            await self._release()

    async def _read_to_the_end(self) -> None:
        """Read and discard frames until the call's status arrives, which follows the last frame."""
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
    """The called side.

    The call lasts until `over` is set: `close` sets it, the return of the handler, and the end of the call by
    the peer.
    """

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
        """End the connection and wake waiting receivers and senders."""
        self._close_here(reason)
        self.over.set()

    async def settle(self) -> None:
        """Wait briefly for queued frames to reach the peer, then stop all tasks."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_GRACE_SECONDS):
                await self._drain()
        await self._abandon()

    async def close(self) -> None:
        self.end("closed on this side")
