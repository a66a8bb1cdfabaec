"""The stream to one peer: connect, handshake, send messages, detect a dead connection.

The accepting side sends a frame at regular intervals; if frames stop, the connecting side closes the stream.
TCP alone detects a network partition only after many seconds, and after the partition an old connection
recovers late, because its retransmission timeout has grown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from google.protobuf.message import DecodeError
from ponor.controller.v1 import peer_service_pb2 as wire
from ponor_raft.membership import ReplicaId
from ponor_raft.messages import Message
from ponor_rpc.errors import OperationError
from ponor_rpc.methods import PEER
from ponor_runtime.clock import Clock
from ponor_runtime.network import Connection, ConnectionClosedError, Network
from ponor_runtime.randomness import Randomness

from ponor_controller.consensus.peer_frames import encode_messages
from ponor_controller.consensus.peer_queue import PeerQueue

HANDSHAKE_SECONDS: Final = 1.0
ALIVE_SECONDS: Final = 0.5
"""Interval at which the accepting side sends a frame."""
SILENCE_SECONDS: Final = 2.0
"""Time without a frame from the accepting side after which the stream is closed."""
BACKOFF_SECONDS_MIN: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 0.5
REFUSED_SECONDS: Final = 2.0
"""Pause after the peer refused this controller. The cause usually persists until an operator removes it."""


class LinkOwner(Protocol):
    """Gets the events of a link."""

    def hello(self, to: ReplicaId) -> wire.PeerHello:
        """The first frame to a peer."""
        ...

    def address(self, to: ReplicaId) -> str:
        """The peer's address; empty if unknown."""
        ...

    def link_made(self) -> None:
        """A stream to a peer is open."""
        ...

    def link_broken(self, to: ReplicaId) -> None:
        """The stream ended or could not be opened; waiting messages were dropped."""
        ...

    def link_refused(self, error: OperationError) -> None:
        """The peer refused this controller."""
        ...


class PeerLink:
    """Keeps a stream to one replica open while `run` runs."""

    def __init__(
        self,
        to: ReplicaId,
        owner: LinkOwner,
        network: Network,
        clock: Clock,
        randomness: Randomness,
        on_dropped: Callable[[ReplicaId], None],
    ) -> None:
        self._to = to
        self._owner = owner
        self._network = network
        self._clock = clock
        self._randomness = randomness
        self._on_dropped = on_dropped
        self._queue = PeerQueue()
        self.connected = False
        self._idle: Connection | None = None
        """The stream while the queue is empty."""
        self._refused: bytes | None = None
        """A frame that the network did not accept at once; it is sent first."""

    def send(self, message: Message) -> None:
        """Send at once if the stream is idle, otherwise queue the message. Messages may be lost."""
        if self._idle is None:
            if self._queue.put(message):
                self._on_dropped(self._to)
            return
        frame = encode_messages((message,))
        if not self._idle.try_send(frame):
            self._refused = frame
            self._idle = None
            self._queue.wake()

    async def run(self) -> None:
        """Connect, and reconnect, until cancelled."""
        backoff = BACKOFF_SECONDS_MIN
        while True:
            wait = backoff
            try:
                address = self._owner.address(self._to)
                if address:
                    await self._serve(address)
            except OperationError as error:
                self._owner.link_refused(error)
                wait = REFUSED_SECONDS
            except (ConnectionClosedError, DecodeError, TimeoutError):
                pass  # expected network failures
            backoff = BACKOFF_SECONDS_MIN if self.connected else min(2 * backoff, BACKOFF_SECONDS_MAX)
            self.connected = False
            self._queue.clear()
            self._owner.link_broken(self._to)
            await self._clock.sleep(wait * self._randomness.uniform(0.5, 1.0))

    async def _serve(self, address: str) -> None:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            connection = await self._network.connect(address, PEER)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                hello = wire.ExchangeRequest(hello=self._owner.hello(self._to))
                await connection.send(hello.SerializeToString())
                await _receive(connection)
            self.connected = True
            self._owner.link_made()
            await self._exchange(connection)
        finally:
            self._idle = self._refused = None
            await connection.close()

    async def _exchange(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        name = f"peer-{self._to.node_id}"
        tasks = (
            loop.create_task(self._send(connection), name=f"{name}-send"),
            loop.create_task(self._listen(connection), name=f"{name}-listen"),
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, connection: Connection) -> None:
        while True:
            if (frame := self._refused) is not None:
                self._refused = None
                await connection.send(frame)
            while self._queue:
                await connection.send(encode_messages(self._queue.take()))
            self._idle = connection
            await self._queue.filled()

    async def _listen(self, connection: Connection) -> None:
        while True:
            async with asyncio.timeout(SILENCE_SECONDS):
                await _receive(connection)


async def _receive(connection: Connection) -> None:
    """Receive one frame from the accepting side.

    Raises:
        OperationError: the peer refused this controller.
    """
    response = wire.ExchangeResponse.FromString(await connection.receive())
    if response.WhichOneof("frame") == "refused":
        raise OperationError.from_proto(response.refused)
