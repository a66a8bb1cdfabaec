"""The session of a node: it sends operations that change metadata to the leading controller.

The client reconnects whenever the connection ends. It sends operations in batches. Until an operation's
outcome is known, each new connection sends it again, with the same id and order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from google.protobuf.message import DecodeError
from ponor.common.v1.error_pb2 import ERROR_CODE_NOT_LEADER
from ponor.controller.v1.session_service_pb2 import (
    Heartbeat,
    LoadReport,
    Operation,
    OperationResult,
    SessionRequest,
    SessionResponse,
    Welcome,
)
from ponor_rpc.errors import NODE_MUST_STOP, RETRY_SAME_OPERATION, OperationError
from ponor_rpc.methods import SESSION
from ponor_runtime.clock import Clock
from ponor_runtime.identity import NodeEpoch
from ponor_runtime.network import Connection, ConnectionClosedError, Network
from ponor_runtime.observer_clock import ObserverClock
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from ponor_metadata.client.controllers import ControllerChoice, KnownControllers, ReconnectBackoff
from ponor_metadata.client.errors import (
    NodeFencedError,
    NotLeaderError,
    OperationTimeoutError,
    OperationTooLargeError,
    ProtocolError,
    SessionClosedError,
)
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.operation_window import ENVELOPE_BYTES, OperationWindow, encoded_operation
from ponor_metadata.client.operations import traced_operation
from ponor_metadata.client.seen_history import SeenHistory

__all__ = ["NodeFencedError", "NodeIdentity", "SessionClient", "SessionSettings"]

NO_DEADLINE: Final = nullcontext()


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Bounds of a session. The protocol defines the first three values.

    `welcome_timeout_ms`: how long the client waits for the answer to a Hello. A live controller answers
    within 1 s, even without a leader.
    """

    frame_bytes_max: int = 256 * 1024
    operations_in_flight_max: int = 1_024
    bytes_in_flight_max: int = 1024 * 1024
    welcome_timeout_ms: int = 3_000
    reconnect_backoff_ms_min: int = 50
    reconnect_backoff_ms_max: int = 500
    overloaded_backoff_ms_max: int = 1_000


class SessionClient:
    """One node's session. The owner runs `run()` as a task; other methods may be called at any time.

    Attributes:
        fenced: set when this process lost its node id; the service must stop.
        fenced_listeners: called with the reason, before callers that wait for answers continue.
        cluster_time_ms: the newest cluster time that was received; 0 before the first.
    """

    def __init__(
        self,
        *,
        network: Network,
        clock: Clock,
        randomness: Randomness,
        telemetry: Telemetry,
        identity: NodeIdentity,
        addresses: Sequence[str] | KnownControllers,
        settings: SessionSettings | None = None,
        applied_index: Callable[[], int] = lambda: 0,
    ) -> None:
        """Create a session; it sends nothing before `run`.

        `addresses` are the controllers, HOST:PORT each; `applied_index` returns the newest index of the
        node's image, for heartbeats.
        """
        self._network = network
        self._clock = clock
        self._observed = ObserverClock(clock)
        self._identity = identity
        self._known = addresses if isinstance(addresses, KnownControllers) else KnownControllers(addresses)
        self._choice = ControllerChoice(self._known)
        self._settings = settings or SessionSettings()
        self._applied_index = applied_index
        self._window = OperationWindow(
            self._settings.operations_in_flight_max,
            self._settings.bytes_in_flight_max,
            self._settings.frame_bytes_max,
        )
        self._reconnect_backoff = ReconnectBackoff(
            randomness,
            ms_min=self._settings.reconnect_backoff_ms_min,
            ms_max=self._settings.reconnect_backoff_ms_max,
        )
        self._overloaded_backoff = ReconnectBackoff(
            randomness, ms_min=20, ms_max=self._settings.overloaded_backoff_ms_max
        )
        self._telemetry = telemetry
        self._reconnects = telemetry.counter("ponor_session_reconnects_total")
        telemetry.gauge("ponor_session_operations_in_flight", lambda: len(self._window))
        self._connection: Connection | None = None
        self._welcome: Welcome | None = None
        self._accepted = asyncio.Event()  # set when welcomed with the present identity, fenced, or closed
        self.seen: SeenHistory | None = None
        """How far this process has seen the controllers' log, according to messages of leaders."""
        self._wake_sender = asyncio.Event()
        self._pause_before_send = 0.0
        self._last_sent_ns = 0
        self._heard_ns: int | None = None
        self._closing = asyncio.Event()
        self._settled = asyncio.Event()  # set when first welcomed, fenced, or closed
        self._running: asyncio.Task[None] | None = None
        self._end: Exception | None = None
        self._load: LoadReport | None = None
        self.fenced = asyncio.Event()
        self.fenced_listeners: list[Callable[[str], None]] = []
        self.cluster_time_ms = 0

    @property
    def identity(self) -> NodeIdentity:
        """The identity of this node."""
        return self._identity

    @property
    def node_epoch(self) -> NodeEpoch:
        """The node epoch of this process; available after `ready` returned."""
        assert self._welcome is not None, "the session has not received its Welcome frame yet"
        return NodeEpoch(self._welcome.node_epoch)

    @property
    def cluster_id(self) -> str:
        """The cluster's id; available after `ready` returned."""
        assert self._welcome is not None, "the session has not received its Welcome frame yet"
        return self._welcome.cluster_id

    @property
    def registered_index(self) -> int:
        """The node must not use its streams before its image reaches this index; available after `ready`
        returned.
        """
        assert self._welcome is not None, "the session has not received its Welcome frame yet"
        return self._welcome.registered_index

    @property
    def session_timeout_ms(self) -> int:
        """Silence after which the controller suspects this node; available after `ready` returned."""
        assert self._welcome is not None, "the session has not received its Welcome frame yet"
        return self._welcome.session_timeout_ms

    @property
    def silence_ms(self) -> int | None:
        """Time since the leader's last frame, including pauses of this process; None before a Welcome."""
        if self._heard_ns is None:
            return None
        return (self._clock.monotonic_ns() - self._heard_ns) // 1_000_000

    async def ready(self) -> Welcome:
        """Wait until this process is registered.

        Raises:
            NodeFencedError, SessionClosedError: this process will not be registered.
        """
        await self._settled.wait()
        if self._end is not None:
            raise self._end
        assert self._welcome is not None
        return self._welcome

    async def submit(self, operation: Operation, *, deadline_ms: int | None = None) -> OperationResult:
        """Execute an operation exactly once, across reconnects; return when the outcome is known.

        The session assigns `operation.request_id`. Waits for room first (backpressure).

        Args:
            operation: the operation; it is not modified.
            deadline_ms: give up after this time; None: never.

        Raises:
            OperationError: the controller refused the operation; nothing was changed.
            OperationTimeoutError: the deadline passed; `sent`: it may still be executed.
            OperationTooLargeError: the operation does not fit into a frame.
            NodeFencedError: this process lost its node id and must stop.
            SessionClosedError: `close` was called.
        """
        if self._telemetry.tracing is not None:
            with traced_operation(self._telemetry, operation) as traced:
                return await self._submit(traced, deadline_ms)
        return await self._submit(operation, deadline_ms)

    async def _submit(self, operation: Operation, deadline_ms: int | None) -> OperationResult:
        encoded = self._encoded(operation)
        pending = None
        try:
            # Most callers have no deadline, and an unlimited timeout would double the cost of this method.
            async with NO_DEADLINE if deadline_ms is None else asyncio.timeout(deadline_ms / 1000):
                if self._end is not None:
                    raise self._end
                pending = await self._window.admit(encoded)
                self._wake_sender.set()
                result = await pending.answer
        except TimeoutError:
            sent = pending is not None and pending.sent
            kind = operation.WhichOneof("kind")
            raise OperationTimeoutError(f"{kind}: no answer within {deadline_ms} ms", sent=sent) from None
        finally:
            if pending is not None:
                self._window.abandon(pending)
        if result.HasField("error"):
            raise OperationError.from_proto(result.error)
        return result

    async def register_again(self, seen: tuple[SeenHistory, ...]) -> None:
        """Send a new Hello that contains `seen`, the records of nodes in the store. Return when a leader
        accepted it. Operations continue under the same ids.

        Raises:
            NodeFencedError, SessionClosedError: no leader will accept it. If one refused, `run` raises why.
        """
        self._identity = replace(self._identity, seen=seen)
        accepted = self._accepted = asyncio.Event()
        if self._connection is not None:
            await self._connection.close()
        if self._end is None:
            await accepted.wait()
        if self._end is not None:
            raise self._end

    def report_load(self, report: LoadReport) -> None:
        """Send a load report to the leader soon, without retries. A newer report replaces an unsent one."""
        self._load = report
        self._wake_sender.set()

    async def submit_in_order(
        self, operations: Sequence[Operation]
    ) -> list[OperationResult | OperationError]:
        """Execute operations in order without waiting between them, in one frame if they fit.

        A refused operation does not stop the next ones. After OVERLOADED an operation is retried and may be
        executed last.

        Returns:
            For each operation its result or its refusal.

        Raises:
            OperationTooLargeError, NodeFencedError, SessionClosedError: as `submit`.
        """
        pending = []
        try:
            for operation in operations:
                encoded = self._encoded(operation)
                if self._end is not None:
                    raise self._end
                pending.append(await self._window.admit(encoded))
                self._wake_sender.set()
            results = [await one.answer for one in pending]
        finally:
            for one in pending:
                self._window.abandon(one)
        return [
            OperationError.from_proto(result.error) if result.HasField("error") else result
            for result in results
        ]

    async def run(self) -> None:
        """Keep the session up until `close` or until the node is fenced.

        Raises:
            OperationError: the controllers refuse this node; the message has the reason and the remedy.
        """
        assert self._running is None, "the session is already running"
        self._running = asyncio.current_task()
        try:
            while not self._closing.is_set() and not self.fenced.is_set():
                follow_at_once = False
                try:
                    await self._converse(self._choice.address())
                except NotLeaderError as error:
                    self._reconnects.add()
                    follow_at_once = self._choice.redirected(error.leader_address)
                except (ConnectionClosedError, ProtocolError, DecodeError, TimeoutError):
                    self._reconnects.add()
                    self._choice.failed()
                if not follow_at_once:
                    await self._back_off()
        finally:
            self._finish(SessionClosedError(f"the session of node {self._identity.node_id} was closed"))
            if self._connection is not None:
                await self._connection.close()

    async def close(self) -> None:
        """End the session; operations in flight fail with SessionClosedError. Idempotent."""
        self._closing.set()
        if self._connection is not None:
            await self._connection.close()
        if self._running is not None and self._running is not asyncio.current_task():
            await asyncio.wait((self._running,))
        self._finish(SessionClosedError(f"the session of node {self._identity.node_id} was closed"))

    async def _back_off(self) -> None:
        if self.fenced.is_set():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._reconnect_backoff.next_seconds()):
                await self._closing.wait()

    async def _converse(self, address: str) -> None:
        """Run one connection until it fails with an exception. Return only if the node is fenced."""
        connection = self._connection = await self._network.connect(address, SESSION)
        accepted = self._accepted
        try:
            async with asyncio.timeout(self._settings.welcome_timeout_ms / 1000):
                hello = self._identity.hello(self._welcome, self.seen)
                await self._send(connection, SessionRequest(hello=hello).SerializeToString())
                welcome = SessionResponse.FromString(await connection.receive())
            self._take_first_frame(welcome)
            if self.fenced.is_set():
                return
            accepted.set()
            self._window.send_all_again()
            self._wake_sender.set()
            await _until_one_ends(
                self._receive(connection),
                self._send_operations(connection),
                self._send_heartbeats(connection),
                self._observed.run(),
            )
        finally:
            self._connection = None
            await connection.close()

    def _take_first_frame(self, frame: SessionResponse) -> None:
        if frame.WhichOneof("frame") == "refused":
            self._refused(OperationError.from_proto(frame.refused))
            return
        if frame.WhichOneof("frame") != "welcome":
            raise ProtocolError(
                f"the first frame of a controller must be Welcome, not {frame.WhichOneof('frame')}"
            )
        if self._welcome is not None and frame.welcome.node_epoch != self._welcome.node_epoch:
            self._fence(f"node epoch {self._welcome.node_epoch} was replaced by {frame.welcome.node_epoch}")
            return
        self._welcome = frame.welcome
        self.seen = SeenHistory(
            frame.welcome.quorum_incarnation,
            frame.welcome.leader_term,
            frame.welcome.registered_index,
            frame.welcome.leader_nonce,
        )
        self.cluster_time_ms = max(self.cluster_time_ms, frame.welcome.cluster_time_ms)
        self._heard_ns = self._clock.monotonic_ns()
        self._reconnect_backoff.reset()
        self._known.learn(frame.welcome.controller_addresses)
        self._choice.served()
        self._settled.set()

    async def _receive(self, connection: Connection) -> None:
        assert self._welcome is not None
        silence_seconds = self._welcome.session_timeout_ms / 1000
        while not self.fenced.is_set():
            async with self._observed.timeout(silence_seconds):
                encoded = await connection.receive()
            self._heard_ns = self._clock.monotonic_ns()
            frame = SessionResponse.FromString(encoded)
            match frame.WhichOneof("frame"):
                case "results":
                    for result in frame.results.results:
                        self._take_result(result)
                case "heartbeat":
                    self.cluster_time_ms = max(self.cluster_time_ms, frame.heartbeat.cluster_time_ms)
                case "refused":
                    self._refused(OperationError.from_proto(frame.refused))
                case other:
                    raise ProtocolError(f"a controller sent {other} in the middle of a session")

    def _take_result(self, result: OperationResult) -> None:
        code = result.error.code if result.HasField("error") else None
        if code in NODE_MUST_STOP:
            self._fence(result.error.message)
        elif code == ERROR_CODE_NOT_LEADER:
            # After reconnecting, the client sends all unanswered operations to the next controller.
            raise NotLeaderError(result.error.message, result.error.leader_address)
        elif code in RETRY_SAME_OPERATION:
            self._window.send_again(result.request_id)
            self._pause_before_send = self._overloaded_backoff.next_seconds()
            self._wake_sender.set()
        else:
            self._overloaded_backoff.reset()
            self._saw(result.commit_index)
            pending = self._window.complete(result.request_id)
            if pending is not None and not pending.answer.done():
                pending.answer.set_result(result)

    def _saw(self, index: int) -> None:
        """Note the commit index of a leader."""
        assert self.seen is not None
        if index > self.seen.index:
            self.seen = replace(self.seen, index=index)

    async def _send_operations(self, connection: Connection) -> None:
        """Send operations as they are submitted. Those submitted in one event-loop turn share frames."""
        while True:
            await self._wake_sender.wait()
            if self._pause_before_send:
                pause, self._pause_before_send = self._pause_before_send, 0.0
                await self._clock.sleep(pause)
            self._wake_sender.clear()
            while (frame := self._window.next_frame()) is not None:
                await self._send(connection, frame)
            if self._load is not None:
                load, self._load = self._load, None
                await self._send(connection, SessionRequest(load=load).SerializeToString())

    async def _send_heartbeats(self, connection: Connection) -> None:
        assert self._welcome is not None
        interval_ns = self._welcome.session_timeout_ms * 1_000_000 // 3
        while True:
            silent_ns = self._clock.monotonic_ns() - self._last_sent_ns
            if silent_ns >= interval_ns:
                beat = SessionRequest(heartbeat=Heartbeat(index=self._applied_index()))
                await self._send(connection, beat.SerializeToString())
                silent_ns = 0
            await self._clock.sleep((interval_ns - silent_ns) / 1e9)

    async def _send(self, connection: Connection, frame: bytes) -> None:
        await connection.send(frame)
        self._last_sent_ns = self._clock.monotonic_ns()

    def _refused(self, error: OperationError) -> None:
        if error.code in NODE_MUST_STOP:
            self._fence(error.message)
        elif error.code == ERROR_CODE_NOT_LEADER:
            raise NotLeaderError(error.message, error.leader_address)
        elif error.code in RETRY_SAME_OPERATION:
            raise ProtocolError(f"the controller cannot serve this session now: {error}")
        else:
            raise error

    def _fence(self, reason: str) -> None:
        self.fenced.set()
        self._finish(NodeFencedError(f"node {self._identity.node_id} must stop: {reason}"))
        for listener in self.fenced_listeners:
            listener(reason)

    def _finish(self, end: Exception) -> None:
        if self._end is None:
            self._end = end
            self._window.fail_all(end)
            self._settled.set()
            self._accepted.set()

    def _encoded(self, operation: Operation) -> bytes:
        """Encode an operation for the window.

        Raises:
            OperationTooLargeError: the operation is larger than the window.
        """
        encoded = encoded_operation(operation)
        size_bytes = len(encoded) + ENVELOPE_BYTES
        if size_bytes + ENVELOPE_BYTES > self._settings.bytes_in_flight_max:
            raise OperationTooLargeError(
                f"{operation.WhichOneof('kind')} of {size_bytes} bytes exceeds the limit of bytes in flight "
                f"({self._settings.bytes_in_flight_max}); split it"
            )
        return encoded


async def _until_one_ends(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends, cancel the others, and raise the first exception by argument order."""
    tasks = [asyncio.get_running_loop().create_task(each, name="session-half") for each in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
