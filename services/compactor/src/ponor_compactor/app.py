"""Composition root of a compactor: constructs its parts and starts and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ponor_metadata.client.joining import Joined
from ponor_metadata.client.node_process import NodeOptions, run_node, until_fenced
from ponor_metadata.client.seen_history import Witness
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_runtime.budgets import ByteBudget
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


async def run(
    runtime: Runtime,
    settings: CompactorSettings,
    options: NodeOptions,
    *,
    store: ObjectStore,
    multipart: MultipartStore,
    stop: asyncio.Event,
    ready: Callable[[ServiceAddresses], None],
    pace: Pace | None = None,
) -> None:
    """Compact until `stop` is set.

    The caller owns the stores and closes them. `pace` must be the `StorePolicy` with which the caller
    opened these stores: it records their "slow down" errors. At the stop the worker abandons a task in
    progress: the lease expires, and garbage collection deletes the output. The errors are those of
    `run_node`.
    """

    def begin(session: SessionClient, joined: Joined, tasks: BackgroundTasks) -> None:
        witness = Witness(store, runtime.clock, joined.marker.namespace, joined.node_id)
        worker = _worker(runtime, settings, session, witness, store, multipart, pace)
        tasks.spawn(until_fenced(worker.run()), "compactor-worker")

    await run_node(runtime, NodeRole.COMPACTOR, options, store, stop, begin=begin, ready=ready)


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
