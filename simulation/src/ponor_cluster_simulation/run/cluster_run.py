"""A run: start, safety phase under faults, healing, judgement."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.image.validate import validate
from ponor_runtime.runtime import Runtime
from ponor_simulation.simulation import SimulationFailedError

from ponor_cluster_simulation.coverage import Coverage
from ponor_cluster_simulation.faults.injector import FaultInjector
from ponor_cluster_simulation.invariants.registry import LIVENESS
from ponor_cluster_simulation.run.effects import count_effects
from ponor_cluster_simulation.run.judgement import Judgement
from ponor_cluster_simulation.run.plan import RunPlan
from ponor_cluster_simulation.run.run_world import RunWorld

START_S_MAX: Final = 30.0
VALIDATED_EVERY: Final = 11
"""Batches between two validations of the observer's whole image."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of a run.

    Attributes:
        trace: the digest of all events.
        failure: empty when all invariants held.
        last_events: the newest lines of the trace, oldest first.
    """

    plan: RunPlan
    trace: str
    coverage: Coverage
    failure: str
    last_events: tuple[str, ...]


class ClusterRun:
    """Executes one plan. Use it once."""

    def __init__(self, plan: RunPlan) -> None:
        self.world = RunWorld(plan)

    def run(self) -> RunResult:
        """Execute the plan. A broken invariant is part of the result, not an exception."""
        world, failure = self.world, ""
        try:
            with world.cluster.watch.on():
                world.simulation.run(self._scenario())
        except SimulationFailedError as failed:
            failure = _message_of(failed.__cause__ or failed)
        count_effects(world)
        trace = world.simulation.trace
        return RunResult(world.plan, trace.digest, world.cluster.coverage, failure, tuple(trace.tail()))

    async def _scenario(self) -> None:
        world, clients = self.world, self.world.clients
        world.cluster.start_all()
        world.start("observer", self._observe)
        world.start("admin", clients.admin.run)
        await world.wait(LIVENESS, "the cluster serves", lambda: world.cluster.is_serving, s_max=START_S_MAX)
        clients.start_first()
        await world.wait(
            LIVENESS,
            "a record is acknowledged",
            lambda: bool(clients.history.acknowledged),
            s_max=START_S_MAX,
        )
        clients.start_others()
        await self._inject_faults()
        await Judgement(world).judge()

    async def _inject_faults(self) -> None:
        """Execute the schedule and heal. The supervisor ends the run when a process stops without a
        reason.
        """
        world = self.world
        processes = list(world.simulation.processes)
        injector = world.injector = FaultInjector(
            world.simulation, world.cluster, processes, world.cluster.coverage
        )
        supervision = asyncio.get_running_loop().create_task(world.supervisor.run())
        faults = asyncio.get_running_loop().create_task(self._execute_schedule(injector))
        await asyncio.wait([supervision, faults], return_when=asyncio.FIRST_COMPLETED)
        if supervision.done():
            supervision.result()
        supervision.cancel()
        faults.result()
        injector.heal()

    async def _execute_schedule(self, injector: FaultInjector) -> None:
        schedule, loop = self.world.plan.schedule, self.world.simulation.loop
        began = loop.time()
        await injector.run(schedule.faults)
        await asyncio.sleep(max(began + schedule.safety_s - loop.time(), 0.0))

    async def _observe(self, runtime: Runtime) -> None:
        """Follow the metadata for the whole run, and validate the image every few batches."""
        observer = self.world.observer = SubscriptionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            addresses=self.world.cluster.addresses,
        )
        self.world.cluster.watch.follow(observer)
        observer.listeners.append(
            lambda batch: None if batch.index % VALIDATED_EVERY else validate(observer.image)
        )
        observer.image_listeners.append(validate)
        await observer.run()


def _message_of(error: BaseException) -> str:
    """The innermost error, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
