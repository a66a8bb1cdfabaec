"""Composition root of the garbage collector: constructs its parts and starts and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from ponor_metadata.client.errors import NodeFencedError
from ponor_metadata.client.joining import ANY_CLUSTER, Joined, Membership, join
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.readiness import require_session
from ponor_metadata.client.seen_history import Witness
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_runtime.identity import NodeId
from ponor_runtime.object_store import MultipartStore, ObjectStore
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

from ponor_gc.abandoned_uploads import AbandonedUploads
from ponor_gc.deletion_right import DeletionRight
from ponor_gc.image_reading import FollowImage, followed_image, read_image
from ponor_gc.reconciliation import Reconciliation
from ponor_gc.rounds import Rounds
from ponor_gc.settings import GcSettings
from ponor_gc.sweeper import Sweeper
from ponor_gc.wal_leftovers import WalLeftovers

INCARNATION_BYTES = 16


@dataclass(frozen=True, slots=True)
class GcOptions:
    """Options that differ between processes."""

    node_id: NodeId
    controllers: tuple[str, ...]
    membership: Membership = ANY_CLUSTER


async def run(
    runtime: Runtime,
    settings: GcSettings,
    options: GcOptions,
    *,
    store: ObjectStore,
    stop: asyncio.Event,
    ready: Callable[[ServiceAddresses], None],
    multipart: MultipartStore | None = None,
) -> None:
    """Collect until `stop` is set.

    The caller owns the stores and closes them.

    Raises:
        WrongClusterError: controllers, store and configuration belong to different clusters.
        NodeFencedError: another process registered under the node id.
        OperationError: the controller refuses this node; the message gives the reason.
    """
    joined = await join(runtime, options.controllers, options.node_id, options.membership, store, stop)
    if joined is None:
        return
    options = replace(options, node_id=joined.node_id)
    session = _session(runtime, options, joined)
    require_session(runtime.health, session)
    loop = asyncio.get_running_loop()
    conversation = loop.create_task(session.run(), name="gc-session")
    stopping = loop.create_task(stop.wait(), name="gc-stop")
    registering = loop.create_task(session.ready(), name="gc-register")
    tasks = BackgroundTasks(runtime.fail_stop)
    try:
        await asyncio.wait((conversation, stopping, registering), return_when=asyncio.FIRST_COMPLETED)
        if registering.done() and registering.exception() is None:
            _begin(
                tasks,
                session,
                runtime,
                settings,
                options,
                joined,
                store=store,
                multipart=multipart,
            )
            ready({})
            await asyncio.wait((conversation, stopping), return_when=asyncio.FIRST_COMPLETED)
        if conversation.done():
            conversation.result()
        if session.fenced.is_set():
            raise NodeFencedError(f"another process registered as node {options.node_id}; this one stops")
    finally:
        await tasks.close()
        await session.close()
        for task in (conversation, stopping, registering):
            task.cancel()
        await asyncio.gather(conversation, stopping, registering, return_exceptions=True)


def _session(runtime: Runtime, options: GcOptions, joined: Joined) -> SessionClient:
    identity = NodeIdentity(
        options.node_id,
        NodeRole.GC,
        runtime.randomness.token(INCARNATION_BYTES),
        cluster_id=joined.marker.cluster_id,
        seen=joined.seen,
    )
    return SessionClient(
        network=runtime.network,
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=runtime.telemetry,
        identity=identity,
        addresses=options.controllers,
    )


def _begin(
    tasks: BackgroundTasks,
    session: SessionClient,
    runtime: Runtime,
    settings: GcSettings,
    options: GcOptions,
    joined: Joined,
    *,
    store: ObjectStore,
    multipart: MultipartStore | None,
) -> None:
    """Start the collector's background tasks."""
    clock, telemetry = runtime.clock, runtime.telemetry
    right = DeletionRight(store, clock, telemetry)
    witness = Witness(store, clock, joined.marker.namespace, options.node_id)
    sweeper = Sweeper(session, store, joined.marker, right, witness, clock, settings, telemetry)
    leftovers = WalLeftovers(
        store,
        right,
        clock,
        settings,
        telemetry,
        lambda: read_image(runtime, options.controllers, session.cluster_id),
    )
    rounds = build_rounds(
        runtime,
        settings,
        lambda: followed_image(runtime, options.controllers, session.cluster_id),
        store=store,
        multipart=multipart,
        right=right,
    )
    tasks.spawn(_sweep_while_current(sweeper), "gc-sweeper")
    tasks.spawn(leftovers.run(), "gc-wal-leftovers")
    tasks.spawn(rounds.run(clock, runtime.randomness), "gc-rounds")


def build_rounds(
    runtime: Runtime,
    settings: GcSettings,
    follow: FollowImage,
    *,
    store: ObjectStore,
    multipart: MultipartStore | None,
    right: DeletionRight | None = None,
) -> Rounds:
    """Build the reconciliation rounds, for a collector or for a command that runs one round."""
    clock, telemetry = runtime.clock, runtime.telemetry
    right = right or DeletionRight(store, clock, telemetry)
    objects = Reconciliation(store, right, clock, settings, telemetry)
    uploads = AbandonedUploads(multipart, clock, settings, telemetry)
    return Rounds(objects, uploads, right, settings, telemetry, follow)


async def _sweep_while_current(sweeper: Sweeper) -> None:
    try:
        await sweeper.run()
    except NodeFencedError:
        return  # `run` sees the fence on the session and stops the process cleanly
