"""The session service: Hello, registration, and one session per node while this controller leads.

When a process registers, the service ends the session of the node's former process. When the same process
connects again, the new session replaces the old one. When leadership ends, all sessions are ended with an
error that contains the address of the new leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.nouns.cluster import cluster_of
from ponor_metadata.nouns.nodes import NODES
from ponor_metadata.nouns.quorum import QUORUM
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeId
from ponor_runtime.network import Connection, ConnectionClosedError
from ponor_runtime.observer_clock import ObserverClock

from ponor_controller.domains.nodes.registration import Raised, Registration, register_node
from ponor_controller.kernel.lanes import Lanes
from ponor_controller.kernel.leading import Leading, not_leading
from ponor_controller.kernel.node_activity import NodeActivity
from ponor_controller.kernel.operation import Caller
from ponor_controller.kernel.proposer import Proposer
from ponor_controller.server.sessions.lost_history import lost_history
from ponor_controller.server.sessions.outbox import AnswerTurn, Outbox
from ponor_controller.server.sessions.session import LoadListener, NodeSilentError, Session
from ponor_controller.settings import ControllerSettings

T = TypeVar("T")
LOG: Final = logging.getLogger("ponor.controller")


class SessionService:
    """Serves SessionService.Session."""

    def __init__(
        self,
        proposer: Proposer,
        lanes: Lanes,
        activity: NodeActivity,
        leading: Leading,
        cluster_id: str,
        settings: ControllerSettings,
        *,
        loads: LoadListener,
        answers: AnswerTurn,
        observed: ObserverClock,
    ) -> None:
        self._proposer = proposer
        self._lanes = lanes
        self._activity = activity
        self._leading = leading
        self._cluster_id = cluster_id
        self._settings = settings
        self._loads = loads
        self._answers = answers
        self._observed = observed
        self._sessions: dict[NodeId, Session] = {}
        self._newest: dict[NodeId, wire.Hello] = {}
        """The last Hello of each node that is being served."""
        self._raised: dict[NodeId, Raised] = {}
        """Progress of registrations that take several batches."""
        self._connections = 0
        self._leads = leading.is_leading
        self._losses = 0
        self._lost_history = ""
        self._changed = asyncio.Event()
        leading.on_change(self._leadership_changed)

    @property
    def session_count(self) -> int:
        """Number of open sessions."""
        return len(self._sessions)

    async def handle(self, connection: Connection) -> None:
        """Serve one node until it disconnects or is refused."""
        self._connections += 1
        try:
            await self._serve(connection)
        except OperationError as error:
            await _refuse(connection, error.to_proto())
        except ConnectionClosedError:
            return
        finally:
            self._connections -= 1
            await connection.close()

    async def _serve(self, connection: Connection) -> None:
        if self._connections > self._settings.sessions_max:
            raise OperationError(
                error_pb2.ERROR_CODE_OVERLOADED,
                f"{self._settings.sessions_max} sessions are open; try again later",
            )
        try:
            async with self._observed.timeout(self._settings.session_timeout_ms / 1000):
                hello = await _receive_hello(connection)
        except TimeoutError:
            return  # silent connections must not use up `sessions_max`
        node_id = NodeId(hello.node_id)
        self._newest[node_id] = hello
        try:
            await self._serve_node(connection, hello)
        finally:
            if self._newest.get(node_id) is hello:
                del self._newest[node_id]

    async def _serve_node(self, connection: Connection, hello: wire.Hello) -> None:
        await self._wait_until_leading(hello)
        caller, registered_index = await self._while_leading(self._register(hello))
        self._require_newest(hello)
        session = self._open(connection, caller)
        try:
            await self._welcome(connection, caller, registered_index)
            await session.run()
        except NodeSilentError:
            self._remove(session)  # so that the node counts as silent, not as a node whose session broke
            raise
        finally:
            if self._remove(session):
                self._activity.left(caller.node_id)

    def _require_newest(self, hello: wire.Hello) -> None:
        """Require that the process has not connected again. It waits only for the answer on its newest
        connection.

        Raises:
            ConnectionClosedError: the process has a newer connection.
        """
        newest = self._newest.get(NodeId(hello.node_id), hello)
        if newest is not hello and newest.incarnation == hello.incarnation:
            raise ConnectionClosedError(f"node {hello.node_id} has a newer connection")

    def _remove(self, session: Session) -> bool:
        """Remove the session. Returns False if the node already has a newer session."""
        node_id = session.caller.node_id
        if self._sessions.get(node_id) is not session:
            return False
        del self._sessions[node_id]
        return True

    def _leadership_changed(self) -> None:
        leads = self._leading.is_leading
        if leads and not self._leads:
            self._activity.restart(row.node_id for row in self._proposer.view[NODES] if not row.fenced)
        if self._leads and not leads:
            self._losses += 1
            self._raised.clear()
            for session in tuple(self._sessions.values()):
                session.end(not_leading(self._leading, f"session of node {session.caller.node_id}"))
        self._leads = leads
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _wait_until_leading(self, hello: wire.Hello) -> None:
        """Delay the answer to a Hello during an election, because retries would only load the voters.

        Raises:
            OperationError: NOT_LEADER when another controller leads, or none leads in time.
        """
        try:
            async with asyncio.timeout(self._settings.leader_wait_ms / 1000):
                while not self._leading.is_leading and not self._leading.leader_address:
                    await self._changed.wait()
        except TimeoutError:
            pass
        if not self._leading.is_leading:
            raise not_leading(self._leading, f"hello of node {hello.node_id}")

    async def _while_leading(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; cancel it if leadership ends first.

        Raises:
            OperationError: NOT_LEADER if leadership ended. The next leader may commit or drop what `work`
                proposed.
        """
        losses = self._losses
        working = asyncio.get_running_loop().create_task(work, name="session-registration")
        losing = asyncio.get_running_loop().create_task(self._lost(losses), name="session-leadership")
        try:
            await asyncio.wait((working, losing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            losing.cancel()
            await asyncio.gather(working, losing, return_exceptions=True)
        # Check after the last wait: leadership may have ended during the wait, and no later event would end a
        # session that begins now.
        if self._losses != losses:
            raise not_leading(self._leading, "registration")
        return working.result()

    async def _lost(self, losses: int) -> None:
        while self._losses == losses:
            await self._changed.wait()

    async def _register(self, hello: wire.Hello) -> tuple[Caller, int]:
        """Register the process; returns after its epoch is committed."""
        await self._check_history(hello)
        node_id = NodeId(hello.node_id)
        with self._activity.registering(node_id):
            registration, registered_index = await self._commit_registration(hello)
        if not registration.records:
            # The welcome confirms the epoch. A leader that was suspended and replaced must not send it.
            await self._leading.read_index()
        node = self._proposer.view[NODES].get(node_id)
        assert node is not None
        if node.node_epoch != registration.node_epoch:
            raise OperationError(
                error_pb2.ERROR_CODE_NODE_EPOCH_STALE,
                f"another process registered as node {hello.node_id} in the meantime; this one must stop",
            )
        return Caller(node_id, registration.node_epoch, hello.role), registered_index

    async def _commit_registration(self, hello: wire.Hello) -> tuple[Registration, int]:
        """Decide on the registration and commit it, in several batches if the node leads many partitions.
        Returns the last decision and the index of its batch.

        If the process connects again in the meantime, its next Hello continues from the last committed batch.
        """
        node_id = NodeId(hello.node_id)
        while True:
            await self._proposer.room()
            self._require_newest(hello)
            raised = self._raised.get(node_id)
            try:
                registration = register_node(hello, self._proposer.view, self._proposer.now_ms(), raised)
            except OperationError:
                # The refusal may be based on uncommitted rows, and a node stops when its epoch is refused. So
                # wait for the commit, and confirm that this leader was not replaced.
                await self._proposer.commits.reached(self._proposer.last_index)
                await self._leading.read_index()
                raise
            # Called before the registration is committed, so that the silence or broken session of the former
            # process does not make the new one suspected.
            self._activity.heard(node_id)
            if registration.records:
                self._proposer.propose(registration.records)
            index = self._proposer.last_index
            await self._proposer.commits.reached(index)
            if registration.raised is None:
                self._raised.pop(node_id, None)
                return registration, index
            self._raised[node_id] = registration.raised

    async def _check_history(self, hello: wire.Hello) -> None:
        """Refuse all nodes as soon as this controller's log is known to be an older copy.

        Raises:
            OperationError: INVALID_REQUEST; the message names what is missing and the remedy.
        """
        if self._contradiction(hello):
            # A deposed leader lacks entries too, those of its successor, although its log is not an older
            # copy.
            await self._leading.read_index()
            found = self._contradiction(hello)
            if found and not self._lost_history:
                self._lost_history = found
                LOG.error("refusing all nodes: %s", found)
        if self._lost_history:
            raise OperationError(error_pb2.ERROR_CODE_INVALID_REQUEST, self._lost_history)

    def _contradiction(self, hello: wire.Hello) -> str:
        leader_term, cluster = self._leading.leader_term, cluster_of(self._proposer.view)
        if leader_term is None or cluster is None or hello.cluster_id not in ("", cluster.cluster_id):
            return ""  # a node of another cluster saw that cluster's log
        return lost_history(hello, leader_term, cluster.incarnation, self._leading.term_at)

    @property
    def lost_history(self) -> str:
        """What this controller's log lacks according to a node's Hello; empty if nothing is known."""
        return self._lost_history

    def _open(self, connection: Connection, caller: Caller) -> Session:
        before = self._sessions.get(caller.node_id)
        if before is not None and before.caller.node_epoch == caller.node_epoch:
            before.abandon()
        elif before is not None:
            before.end(
                OperationError(
                    error_pb2.ERROR_CODE_NODE_EPOCH_STALE,
                    f"a newer process registered as node {caller.node_id} with epoch {caller.node_epoch};"
                    " this one must stop",
                )
            )
        outbox = Outbox(connection, self._answers, self._heartbeat, self._settings.session_timeout_ms / 3000)
        session = Session(
            connection,
            outbox,
            self._lanes,
            self._activity,
            caller,
            self._loads,
            operations_max=self._settings.session_operations_max,
            bytes_max=self._settings.session_bytes_max,
            silence_ms_max=self._settings.session_timeout_ms,
            observed=self._observed,
        )
        self._sessions[caller.node_id] = session
        self._activity.heard(caller.node_id)
        return session

    async def _welcome(self, connection: Connection, caller: Caller, registered_index: int) -> None:
        cluster, leader_term = cluster_of(self._proposer.view), self._leading.leader_term
        assert cluster is not None
        assert leader_term is not None, "a controller that does not lead sends no welcome"
        welcome = wire.Welcome(
            cluster_id=self._cluster_id,
            node_epoch=caller.node_epoch,
            registered_index=registered_index,
            cluster_time_ms=self._proposer.now_ms(),
            session_timeout_ms=self._settings.session_timeout_ms,
            controller_addresses=[row.service_address for row in self._proposer.view.image[QUORUM]],
            quorum_incarnation=cluster.incarnation,
            leader_term=leader_term.term,
            leader_nonce=leader_term.nonce,
        )
        await connection.send(wire.SessionResponse(welcome=welcome).SerializeToString())

    def _heartbeat(self) -> wire.Heartbeat:
        return wire.Heartbeat(index=self._proposer.view.image.index, cluster_time_ms=self._proposer.now_ms())


async def _receive_hello(connection: Connection) -> wire.Hello:
    try:
        request = wire.SessionRequest.FromString(await connection.receive())
    except DecodeError as error:
        raise OperationError(
            error_pb2.ERROR_CODE_INVALID_REQUEST, f"a frame is not a SessionRequest: {error}"
        ) from error
    if request.WhichOneof("frame") != "hello":
        raise OperationError(
            error_pb2.ERROR_CODE_INVALID_REQUEST, "the first frame of a session must be a hello"
        )
    return request.hello


async def _refuse(connection: Connection, error: error_pb2.Error) -> None:
    try:
        await connection.send(wire.SessionResponse(refused=error).SerializeToString())
    except ConnectionClosedError:
        return
