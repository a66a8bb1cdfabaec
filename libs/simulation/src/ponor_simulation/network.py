"""A simulated network: ordered connections between processes, with delays, resets and cut links.

`SimNetwork` is the `Network` port of one process; `NetworkHub` connects all processes. Frames of one
connection keep their order, as on gRPC. Connections fail as on TCP: at once when a process ends, later for
one side than for the other, or silently while a link is cut. Different connections have no common order: an
abandoned connection may deliver frames after its successor does, and both may deliver the same frames.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ponor_runtime.network import FRAME_BYTES_MAX, ConnectionClosedError, FrameTooLargeError, Handler

from ponor_simulation.links import DelayLaw, Direction, Links
from ponor_simulation.loop import INCARNATION, Incarnation, VirtualTimeLoop
from ponor_simulation.trace import Trace

WINDOW_FRAMES_MAX: Final = 64
WINDOW_BYTES_MAX: Final = 1024 * 1024
"""Maximum bytes in flight or unread per direction. At the bound `send` waits, as with gRPC's flow control; an
empty window accepts a frame of any size.
"""
FIRST_FREE_PORT: Final = 40_000
GIVE_UP_S: Final = (0.2, 3.0)
"""Delay until the ends of a connection detect a lost frame or an ended peer."""


class NetworkHub:
    """All connections between the processes.

    Attributes:
        delay_law: the law of directions that `links.delays` does not contain.
        links: the faulty links.
        lost_frames, abandoned_connections, stalled_frames: how often each fault took effect.
    """

    def __init__(self, loop: VirtualTimeLoop, seed: str, trace: Trace) -> None:
        self.loop = loop
        self.trace = trace
        self.delay_law = DelayLaw()
        self.links = Links()
        self.connect_timeout_s = 1.0
        self.lost_frames = 0
        self.abandoned_connections = 0
        self.stalled_frames = 0
        self._chance = random.Random(f"network {seed}")
        self._listeners: dict[str, SimListener] = {}
        self._connections: dict[_Pipe, None] = {}
        self._called: dict[SimConnection, Call] = {}
        """By the caller's end: connections that their callers have not closed."""
        self._forgotten: list[str] = []
        self._next_port = FIRST_FREE_PORT

    def delay(self, direction: Direction | None = None) -> float:
        """Draw the delay of the next frame, in seconds."""
        delays = self.links.delays
        law = delays.get(direction, self.delay_law) if delays and direction is not None else self.delay_law
        return law.draw(self._chance)

    def due_at(self, direction: Direction) -> float:
        """The loop time at which a frame that is sent now arrives."""
        due = self.loop.time() + self.delay(direction)
        clogs = self.links.clogged_until_s
        if clogs and clogs.get(direction, 0.0) > due:
            self.stalled_frames += 1
            return clogs[direction]
        return due

    def is_lost(self, direction: Direction) -> bool:
        """Draw whether the next frame is lost."""
        losses = self.links.losses
        if not losses:
            return False
        share = losses.get(direction, 0.0)
        lost = share > 0 and self._chance.random() < share
        self.lost_frames += lost
        return lost

    def patience_s(self) -> float:
        """Draw the time until an end detects that its connection is dead, in seconds."""
        return self._chance.uniform(*GIVE_UP_S)

    def cut(self, source: str, target: str) -> None:
        """Stall frames from one process to another; a partition needs both directions."""
        self.links.cuts[(source, target)] = None

    def heal(self) -> None:
        """Repair all links; stalled frames continue."""
        self.change_links(Links())

    def change_links(self, links: Links) -> None:
        """Replace the faulty links; stalled frames of repaired links continue."""
        self.links = links
        for pipe in list(self._connections):
            pipe.pump()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether frames from source to target stall."""
        return (source, target) in self.links.cuts

    def abandon_connections(self, side: str, other: str) -> int:
        """Abandon every connection of `side` to `other`; `other` detects this later. Return their number."""
        pipes = [
            pipe
            for pipe in self._connections
            if pipe.source == side and pipe.target == other and not pipe.abandoned
        ]
        for pipe in pipes:
            pipe.abandon()
        self.abandoned_connections += len(pipes)
        return len(pipes)

    def reset_connections(self, one: str, other: str) -> int:
        """Reset every connection between two processes. Return their number."""
        pipes = [pipe for pipe in self._connections if {pipe.source, pipe.target} == {one, other}]
        for pipe in pipes:
            pipe.break_off()
        return len(pipes) // 2

    def process_died(self, incarnation: Incarnation) -> None:
        """Remove the listeners of an ended process and reset its connections; peers detect it after a
        delay.
        """
        self._listeners = {
            address: listener
            for address, listener in self._listeners.items()
            if listener.incarnation is not incarnation
        }
        self._forgotten += self._forgotten_by(incarnation)
        self._called = {end: call for end, call in self._called.items() if call.caller is not incarnation}
        for pipe in [pipe for pipe in self._connections if incarnation in (pipe.sender, pipe.receiver)]:
            self.loop.call_later(self.delay(), pipe.break_off, context=self.loop.outside)

    def bind(self, address: str, handlers: Mapping[str, Handler], incarnation: Incarnation) -> SimListener:
        """Start listening.

        Raises:
            OSError: the address is in use.
        """
        host, _, port = address.rpartition(":")
        if port == "0":
            address = f"{host}:{self._next_port}"
            self._next_port += 1
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {address}: the address is in use")
        listener = SimListener(self, address, dict(handlers), incarnation)
        self._listeners[address] = listener
        return listener

    def unbind(self, listener: SimListener) -> None:
        """Stop listening and reset the listener's connections."""
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]
        for pipe in [pipe for pipe in self._connections if pipe.listener is listener]:
            pipe.finish()

    def listener(self, address: str) -> SimListener | None:
        """The listener of an address."""
        return self._listeners.get(address)

    def join(self, caller: Incarnation, listener: SimListener) -> tuple[SimConnection, SimConnection]:
        """A new connection: the caller's end and the listener's."""
        there = _Pipe(self, caller, listener.incarnation, listener)
        back = _Pipe(self, listener.incarnation, caller, listener)
        self._connections[there] = self._connections[back] = None
        there.opposite, back.opposite = back, there
        return SimConnection(self, there, back), SimConnection(self, back, there)

    def forget(self, pipe: _Pipe) -> None:
        """Remove a closed direction."""
        self._connections.pop(pipe, None)

    def called(self, connection: SimConnection, call: Call) -> None:
        """Record a caller's connection. The caller must close it, even after the other end closed it."""
        self._called[connection] = call

    def hung_up(self, connection: SimConnection) -> None:
        """Record that the caller closed its connection."""
        self._called.pop(connection, None)

    def forgotten(self) -> list[str]:
        """Describe connections that will never be closed: the task that opened the connection has ended or
        has opened another one.
        """
        callers = dict.fromkeys(call.caller for call in self._called.values())
        return [*self._forgotten, *(each for caller in callers for each in self._forgotten_by(caller))]

    def _forgotten_by(self, caller: Incarnation) -> list[str]:
        found: list[str] = []
        newest: dict[asyncio.Task[Any] | None, Call] = {}
        for call in self._called.values():
            if call.caller is caller:
                if call.task in newest:
                    found.append(f"{newest[call.task]} before its next call")
                newest[call.task] = call
        found += [
            f"{call} before its task ended" for task, call in newest.items() if task is None or task.done()
        ]
        return found


@dataclass(frozen=True, slots=True)
class Call:
    """The caller of a connection: its process life, its task, and the address."""

    caller: Incarnation
    task: asyncio.Task[Any] | None
    address: str
    method: str

    def __str__(self) -> str:
        name = "no task" if self.task is None else self.task.get_name()
        return (
            f"{self.caller.name} called {self.method} at {self.address} in {name}, and did not"
            " close the connection"
        )


class _Pipe:
    """One direction of a connection."""

    def __init__(
        self, hub: NetworkHub, sender: Incarnation, receiver: Incarnation, listener: SimListener
    ) -> None:
        self._hub = hub
        self.sender = sender
        self.receiver = receiver
        self.listener = listener
        self.source = process_of(sender)
        self.target = process_of(receiver)
        self.direction = (self.source, self.target)
        self.opposite: _Pipe = self
        self.closed = False
        self.abandoned = False
        """The sending end has given the connection up; frames sent before still arrive."""
        self._void = False
        """Frames sent from now on never arrive, and the sender has not detected this yet."""
        self._under_way: deque[tuple[float, bytes | None]] = deque()
        self._window_bytes = 0
        self._arrived: deque[bytes | None] = deque()
        self._timer_set = False
        self._changed: deque[asyncio.Future[None]] = deque()

    async def send(self, frame: bytes) -> None:
        """Send a frame; wait while the window is full."""
        while not self.is_over_for_sender and self._window_is_full(len(frame)):
            await self._change()
        if self.is_over_for_sender:
            raise ConnectionClosedError(f"the connection from {self.source} to {self.target} is closed")
        self._launch(frame)

    def try_send(self, frame: bytes) -> bool:
        """Send a frame if the window has room."""
        if self.is_over_for_sender or self._window_is_full(len(frame)):
            return False
        self._launch(frame)
        return True

    async def receive(self) -> bytes:
        """Take the next frame that has arrived."""
        while not self._arrived:
            if self.closed or self.opposite.abandoned:
                raise ConnectionClosedError(f"the connection from {self.source} to {self.target} is closed")
            await self._change()
        frame = self._arrived[0]
        if frame is None:
            self.break_off()
            raise ConnectionClosedError(f"{self.source} closed the connection to {self.target}")
        self._arrived.popleft()
        self._window_bytes -= len(frame)
        self._wake()
        return frame

    @property
    def is_over_for_sender(self) -> bool:
        """Whether the sending end has detected that nothing can be sent."""
        return self.closed or self.abandoned

    def finish(self) -> None:
        """Close in order: frames in flight still arrive."""
        if not self.is_over_for_sender:
            self._launch(None)

    def abandon(self) -> None:
        """Abandon the connection at the sending end. The receiving end detects this later; frames that it
        sends until then are lost.
        """
        self.abandoned = True
        self.opposite.lose_all()
        self._wake()
        self._hub.loop.call_later(self._hub.patience_s(), self.break_off, context=self._hub.loop.outside)

    def lose_all(self) -> None:
        """Drop all frames that have not been received, and all later ones."""
        self._void = True
        self._under_way.clear()
        self._arrived.clear()
        self._window_bytes = 0
        self._wake()

    def break_off(self) -> None:
        """Reset both directions; frames in flight are lost."""
        self.hang_up()
        self.opposite.hang_up()

    def hang_up(self) -> None:
        """End this direction at once; frames in flight are lost."""
        if not self.closed:
            self.closed = True
            self._under_way.clear()
            self._arrived.clear()
            self._hub.forget(self)
            self._wake()

    def pump(self) -> None:
        """Deliver due frames, then wait for the next one."""
        hub, under_way = self._hub, self._under_way
        if not under_way or self.direction in hub.links.cuts:
            return
        now = hub.loop.time()
        while under_way and under_way[0][0] <= now:
            _, frame = under_way.popleft()
            size = -1 if frame is None else len(frame)
            hub.trace.record(now, "network", "deliver", self.source, self.target, size)
            self._arrived.append(frame)
            if self._changed:
                self._wake()
        if under_way and not self._timer_set:
            self._timer_set = True
            hub.loop.call_at(under_way[0][0], self._timer_fired, context=hub.loop.outside)

    def _timer_fired(self) -> None:
        self._timer_set = False
        self.pump()

    def _window_is_full(self, frame_bytes: int) -> bool:
        frames = len(self._under_way) + len(self._arrived)
        return frames >= WINDOW_FRAMES_MAX or (
            frames > 0 and self._window_bytes + frame_bytes > WINDOW_BYTES_MAX
        )

    def _launch(self, frame: bytes | None) -> None:
        if self._void:
            return
        if self._hub.is_lost(self.direction):
            self._hub.trace.record(self._hub.loop.time(), "network", "lose", self.source, self.target)
            self._void = True
            self._hub.loop.call_later(self._hub.patience_s(), self.break_off, context=self._hub.loop.outside)
            return
        due, under_way = self._hub.due_at(self.direction), self._under_way
        if frame is not None:
            self._window_bytes += len(frame)
        if under_way and under_way[-1][0] > due:
            due = under_way[-1][0]
        under_way.append((due, frame))
        self.pump()

    async def _change(self) -> None:
        changed = self._hub.loop.create_future()
        self._changed.append(changed)
        await changed

    def _wake(self) -> None:
        while self._changed:
            changed = self._changed.popleft()
            if not changed.done():
                changed.set_result(None)


class SimConnection:
    """`Connection` of the simulated network: one end."""

    def __init__(self, hub: NetworkHub, outgoing: _Pipe, incoming: _Pipe) -> None:
        self._hub = hub
        self._outgoing = outgoing
        self._incoming = incoming
        self._closed = False

    async def send(self, frame: bytes) -> None:
        if self._closed:
            raise ConnectionClosedError("this connection was closed here")
        _check_size(frame)
        await self._outgoing.send(bytes(frame))

    def try_send(self, frame: bytes) -> bool:
        _check_size(frame)
        return not self._closed and self._outgoing.try_send(bytes(frame))

    async def receive(self) -> bytes:
        return await self._incoming.receive()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._hub.hung_up(self)
            self._outgoing.finish()
            if not self._outgoing.abandoned:  # an abandoned connection ends later at the other end
                self._incoming.hang_up()


def _check_size(frame: bytes) -> None:
    if len(frame) > FRAME_BYTES_MAX:
        raise FrameTooLargeError(
            f"a frame of {len(frame)} bytes exceeds the limit of {FRAME_BYTES_MAX} bytes"
        )


class SimListener:
    """`Listener` of the simulated network."""

    def __init__(
        self, hub: NetworkHub, address: str, handlers: dict[str, Handler], incarnation: Incarnation
    ) -> None:
        self._hub = hub
        self._address = address
        self._handlers = handlers
        self.incarnation = incarnation

    @property
    def address(self) -> str:
        return self._address

    async def close(self) -> None:
        self._hub.unbind(self)

    def accept(self, method: str, connection: SimConnection) -> None:
        """Serve a connection in the listening process."""
        context = self._hub.loop.outside.copy()
        context.run(INCARNATION.set, self.incarnation)
        self._hub.loop.create_task(self._serve(method, connection), name=f"serve {method}", context=context)

    async def _serve(self, method: str, connection: SimConnection) -> None:
        handler = self._handlers.get(method)
        try:
            if handler is not None:
                await handler(connection)
        except ConnectionClosedError:
            pass
        finally:
            await connection.close()


class SimNetwork:
    """`Network` of one simulated process."""

    def __init__(self, hub: NetworkHub, incarnation: Incarnation) -> None:
        self._hub = hub
        self._incarnation = incarnation

    async def connect(self, address: str, method: str) -> SimConnection:
        here, target = process_of(self._incarnation), address.rpartition(":")[0]
        await asyncio.sleep(self._hub.due_at((here, target)) - self._hub.loop.time())
        listener = self._hub.listener(address)
        if listener is None:
            raise ConnectionClosedError(f"no listener on {address}")
        there = process_of(listener.incarnation)
        if self._hub.is_cut(here, there) or self._hub.is_cut(there, here):
            await asyncio.sleep(self._hub.connect_timeout_s)
            raise ConnectionClosedError(f"{address} does not answer")
        ours, theirs = self._hub.join(self._incarnation, listener)
        self._hub.called(ours, Call(self._incarnation, asyncio.current_task(), address, method))
        listener.accept(method, theirs)
        return ours

    async def listen(self, address: str, handlers: Mapping[str, Handler]) -> SimListener:
        return self._hub.bind(address, handlers, self._incarnation)


def process_of(incarnation: Incarnation) -> str:
    """The process name of a life."""
    return incarnation.name.partition("#")[0]
