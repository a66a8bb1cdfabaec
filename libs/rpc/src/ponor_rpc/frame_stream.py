"""One gRPC call as a connection of the network port.

What lives here: how frames are read from and written to a call so that a cancelled caller loses nothing, and how every way in which
a call can end becomes a `ConnectionClosedError`. Where calls come from is `grpc_network`.

grpc.aio cancels a whole call when the task that reads from it is cancelled (a timeout around `receive` would kill the connection), and
allows one read and one write at a time. Therefore reads and writes run in tasks of their own, at most one of each, and callers wait for
those: a caller that gives up leaves the task alone, and the next caller gets its result.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
from ponor_runtime.network import FRAME_BYTES_MAX, ConnectionClosedError

CLOSE_GRACE_SECONDS: Final = 0.25
"""How long a closing side waits for frames that were handed over to reach the peer."""

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
        self._end_reason: str | None = None
        self._reading: asyncio.Task[bytes | None] | None = None
        self._writing: asyncio.Task[bool] | None = None
        self._send_turn = asyncio.Lock()

    async def send(self, frame: bytes) -> None:
        """See `Connection.send`. A frame whose sender was cancelled may still be delivered.

        Raises:
            ValueError: the frame is larger than FRAME_BYTES_MAX.
        """
        if len(frame) > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {len(frame)} bytes is larger than {FRAME_BYTES_MAX}; split it")
        async with self._send_turn:
            if self._writing is not None:  # left behind by a sender that was cancelled
                await asyncio.wait((self._writing,))
            self._raise_if_ended()
            writing = asyncio.get_running_loop().create_task(self._write_frame(frame), name="grpc-write")
            self._writing = writing
            await asyncio.wait((writing,))
            self._writing = None
            if writing.cancelled() or not writing.result():
                self._ended("the call ended while a frame was being sent")
                self._raise_if_ended()

    async def receive(self) -> bytes:
        """See `Connection.receive`. A cancelled receiver loses no frame."""
        self._raise_if_ended()
        frame = await self._next_frame()
        self._raise_if_ended()
        if frame is None:
            self._ended(self._status())
            self._raise_if_ended()
        assert frame is not None
        return frame

    async def _next_frame(self) -> bytes | None:
        """The next frame, None at the end; also used by `close` to drain while a receiver waits."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_frame(), name="grpc-read")
        reading = self._reading
        await asyncio.wait((reading,))
        if self._reading is reading:
            self._reading = None
        return None if reading.cancelled() else reading.result()

    async def _read_frame(self) -> bytes | None:
        try:
            frame = await self._read()
        except END_OF_CALL as error:
            self._note(error)
            return None
        # Identity deserializers: a frame is the bytes that the peer sent. EOF is an object of grpc's own.
        return frame if isinstance(frame, bytes) else None

    async def _write_frame(self, frame: bytes) -> bool:
        try:
            await self._write(frame)
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

    def _raise_if_ended(self) -> None:
        if self._end_reason is not None:
            raise ConnectionClosedError(f"connection with {self._peer}: {self._end_reason}")

    async def _abandon(self) -> None:
        """Cancel what still reads or writes, and wait for it: no task outlives the call."""
        tasks = [task for task in (self._reading, self._writing) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

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
        already_over = self._end_reason is not None or self._writing is not None
        self._ended("closed on this side")
        try:
            if not already_over and not self._call.done():
                async with asyncio.timeout(CLOSE_GRACE_SECONDS):
                    await self._half_close()
                    while await self._next_frame() is not None:
                        pass  # the status comes only after the last frame was read
        except TimeoutError:
            pass  # the peer is slow or gone: cut it off
        finally:
            self._call.cancel()
            await self._abandon()
            await self._release()

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
        self._ended(reason)
        self.over.set()

    async def settle(self) -> None:
        """Give a write in progress a moment to reach the peer, then leave nothing behind."""
        if self._writing is not None:
            await asyncio.wait((self._writing,), timeout=CLOSE_GRACE_SECONDS)
        await self._abandon()

    async def close(self) -> None:
        self.end("closed on this side")
