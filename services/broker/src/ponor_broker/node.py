"""This process as a node of the cluster: registration, session, metadata image, and the end of its epoch.

A process stops in the event-loop turn in which it detects that its epoch has ended: all data that it
acknowledged is durable, and it may acknowledge no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from ponor_metadata.client.controllers import KnownControllers
from ponor_metadata.client.errors import NodeFencedError, SessionClosedError
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.readiness import require_current_image, require_session
from ponor_metadata.client.seen_history import SeenHistory
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.nodes import NODES, NodeRole, NodeRow, WalKind
from ponor_rpc.errors import OperationError
from ponor_runtime.identity import NodeEpoch, NodeId
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

INCARNATION_BYTES: Final = 16


class Node:
    """The session and the subscription of one broker process.

    Attributes:
        controllers: known controller addresses; grows with the cluster's answers.
        session: changes metadata.
        subscription: follows metadata.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        node_id: NodeId,
        cluster_id: str,
        seen: tuple[SeenHistory, ...] = (),
        controllers: tuple[str, ...],
        wal: WalKind,
        kafka_host: str,
        kafka_port: int,
        listeners: Mapping[str, str],
    ) -> None:
        self._runtime = runtime
        self._parting = False
        self._registered = False
        self._refusal: OperationError | None = None
        self.node_id = node_id
        self.controllers = KnownControllers(controllers)
        self.subscription = SubscriptionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            addresses=self.controllers,
        )
        self.session = SessionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            identity=NodeIdentity(
                node_id,
                NodeRole.BROKER,
                runtime.randomness.token(INCARNATION_BYTES),
                cluster_id=cluster_id,
                seen=seen,
                kafka_host=kafka_host,
                kafka_port=kafka_port,
                listeners=listeners,
                wal=wal,
            ),
            addresses=self.controllers,
            applied_index=lambda: self.subscription.image.index,
        )
        self.session.fenced_listeners.append(self._fenced)
        self.subscription.listeners.append(lambda _: self._look_for_end())
        self.subscription.image_listeners.append(lambda _: self._look_for_end())

    @property
    def epoch(self) -> NodeEpoch:
        """Node epoch of this process; known after `register`."""
        return self.session.node_epoch

    @property
    def row(self) -> NodeRow | None:
        """This node's row in the image."""
        return self.subscription.image[NODES].get(self.node_id)

    def start(self, tasks: BackgroundTasks) -> None:
        """Start session and subscription."""
        require_session(self._runtime.health, self.session)
        require_current_image(self._runtime.health, self.subscription)
        tasks.spawn(self.subscription.run(), "subscription")
        tasks.spawn(self._run_session(), "session")

    async def register(self) -> None:
        """Return when a controller registered this process and the image shows it.

        Raises:
            OperationError: registration was refused; the message gives the reason and the remedy.
            NodeFencedError, SessionClosedError: registration can no longer succeed.
        """
        try:
            await self.session.ready()
        except SessionClosedError:
            if self._refusal is not None:
                raise self._refusal from None
            raise
        await self.subscription.wait_for(self.session.registered_index)
        self._registered = True

    def part(self) -> None:
        """Expect the end of this epoch, which from now on does not stop the process."""
        self._parting = True

    async def close(self) -> None:
        """Close session and subscription. Idempotent."""
        await self.subscription.close()
        await self.session.close()

    async def _run_session(self) -> None:
        try:
            await self.session.run()
        except OperationError as error:
            if self._registered:
                raise
            self._refusal = error  # a configuration problem, not a failure of this process

    def _look_for_end(self) -> None:
        """Check whether the image shows the end of this epoch, perhaps before the session reports it."""
        row = self.row if self._registered else None
        if row is None or row.node_epoch < self.epoch:
            return
        if row.node_epoch > self.epoch:
            self._fenced(f"a newer process registered, at epoch {row.node_epoch}")
        elif row.fenced:
            self._fenced(f"its epoch {row.node_epoch} was fenced")

    def _fenced(self, reason: str) -> None:
        if not self._parting:
            error = NodeFencedError(f"node {self.node_id} must stop: {reason}")
            self._runtime.fail_stop("the session", error)


async def first_of(wanted: asyncio.Future[None], stop: asyncio.Event) -> bool:
    """Wait for `wanted` or `stop`; return whether `wanted` was first. The other one is cancelled."""
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((wanted, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            return False
        await wanted
        return True
    finally:
        wanted.cancel()
        stopping.cancel()
