"""Composition root of a compactor: constructs its parts and starts and stops them."""

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
from ponor_runtime.budgets import ByteBudget
from ponor_runtime.identity import NodeId
from ponor_runtime.object_store import MultipartStore, ObjectStore
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

from ponor_compactor.controller_tasks import ControllerTasks
from ponor_compactor.pace import Pace
from ponor_compactor.progress import Progress
from ponor_compactor.settings import CompactorSettings
from ponor_compactor.task_run import TaskRun
from ponor_compactor.worker import Worker

INCARNATION_BYTES = 16


@dataclass(frozen=True, slots=True)
class CompactorOptions:
    """Options that differ between processes."""

    node_id: NodeId
    controllers: tuple[str, ...]
    membership: Membership = ANY_CLUSTER


async def run(
    runtime: Runtime,
    settings: CompactorSettings,
    options: CompactorOptions,
    *,
    store: ObjectStore,
    multipart: MultipartStore,
    stop: asyncio.Event,
    ready: Callable[[ServiceAddresses], None],
    pace: Pace | None = None,
) -> None:
    """Compact until `stop` is set.

    The caller owns the stores and closes them. `pace` is the object that the stores notify of "slow down", if any.

    A task in progress at the stop is abandoned: its lease expires, and garbage collection deletes its output.

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
    witness = Witness(store, runtime.clock, joined.marker.namespace, options.node_id)
    worker = _worker(runtime, settings, session, witness, store, multipart, pace)
    require_session(runtime.health, session)
    loop = asyncio.get_running_loop()
    conversation = loop.create_task(session.run(), name="compactor-session")
    stopping = loop.create_task(stop.wait(), name="compactor-stop")
    registering = loop.create_task(session.ready(), name="compactor-register")
    tasks = BackgroundTasks(runtime.fail_stop)
    try:
        await asyncio.wait((conversation, stopping, registering), return_when=asyncio.FIRST_COMPLETED)
        if registering.done() and registering.exception() is None:
            tasks.spawn(_work_while_current(worker), "compactor-worker")
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


def _session(runtime: Runtime, options: CompactorOptions, joined: Joined) -> SessionClient:
    identity = NodeIdentity(
        options.node_id,
        NodeRole.COMPACTOR,
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


def _worker(
    runtime: Runtime,
    settings: CompactorSettings,
    session: SessionClient,
    witness: Witness,
    store: ObjectStore,
    multipart: MultipartStore,
    pace: Pace | None,
) -> Worker:
    clock, telemetry = runtime.clock, runtime.telemetry
    budget = ByteBudget("compaction_budget_bytes", settings.compaction_budget_bytes)
    telemetry.gauge("ponor_compactor_held_bytes", lambda: budget.held_bytes)
    progress = Progress(clock, telemetry)
    pace = pace or Pace(clock, settings, telemetry)
    run_of_task = TaskRun(
        store,
        multipart,
        settings,
        budget=budget,
        throttle=pace,
        progress=progress,
    )
    return Worker(
        ControllerTasks(session, settings, lambda: witness.write(session.seen)),
        run_of_task,
        progress,
        settings,
        pace=pace,
        clock=clock,
        randomness=runtime.randomness,
        telemetry=telemetry,
    )


async def _work_while_current(worker: Worker) -> None:
    try:
        await worker.run()
    except NodeFencedError:
        return  # `run` sees the fence on the session and stops the process cleanly
