"""One run: a plan is carried out, first the safety phase under faults, then healing and the liveness phase, and the judgement.

What lives here: the order of things. Faults are done by `faults.injector`, invariants are looked at by `cluster_watch` and the ledger while it runs, what must hold at the end is `judgement`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from ponor_metadata.subscription import SubscriptionClient
from ponor_metadata.validate import validate
from ponor_runtime.identity import compose_node_id
from ponor_runtime.runtime import Runtime

from ponor_simulation.cluster import ORDINAL, SimCluster
from ponor_simulation.coverage import Coverage
from ponor_simulation.faults.injector import FaultInjector
from ponor_simulation.invariants.ledger import Ledger
from ponor_simulation.invariants.registry import Checks
from ponor_simulation.judgement import Judgement
from ponor_simulation.plan import RunPlan
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation, SimulationFailedError
from ponor_simulation.supervision import Supervisor
from ponor_simulation.workload.admin import Admin
from ponor_simulation.workload.consumer import Consumer
from ponor_simulation.workload.history import ClusterHistory
from ponor_simulation.workload.producer import Producer
from ponor_simulation.workload.repeater import Repeater
from ponor_simulation.workload.rivals import Arena, Rival

TOPIC: Final = "orders"
START_S_MAX: Final = 30.0
FIRST_RIVAL: Final = 50
FIRST_REPEATER: Final = 60
VALIDATED_EVERY: Final = 11
"""Batches between two looks at a whole image."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What became of a run. `failure` is empty when all held.

    Attributes:
        last_events: the newest lines of the trace, oldest first.
    """

    plan: RunPlan
    trace: str
    coverage: Coverage
    failure: str
    last_events: tuple[str, ...]


class ClusterRun:
    """Carries out one plan. Use it once."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.simulation = Simulation(plan.seed)
        self.cluster = SimCluster(
            self.simulation,
            plan.settings,
            store_in_directory=not plan.has_bucket,
            controllers=plan.controllers,
        )
        self.history = ClusterHistory()
        checks = Checks(self.cluster.coverage.checks)
        bucket = None if self.cluster.store is None else self.cluster.store.bucket
        self.ledger = Ledger(checks, bucket, plan.settings.controller.destroy_delay_ms)
        self.cluster.watch.on_batch = self.ledger.batch
        if bucket is not None:
            bucket.on_delete = self.ledger.objects.deleted
        self.producers = [
            Producer(f"producer-{number}", TOPIC, plan.partitions, self.history, pause_s_max=plan.pause_s_max)
            for number in range(plan.producers)
        ]
        self.consumers = [
            Consumer(f"consumer-{number}", TOPIC, plan.partitions, self.history, pause_s_max=plan.pause_s_max)
            for number in range(plan.consumers)
        ]
        self.admin = Admin(TOPIC, plan.partitions)
        self.arena = Arena()
        self.rivals = self._make_rivals()
        self.repeaters = [
            Repeater(
                f"repeater-{number}",
                compose_node_id(ORDINAL, FIRST_REPEATER + number),
                self.cluster.addresses,
                checks,
            )
            for number in range(plan.repeaters)
        ]
        self.observer: SubscriptionClient | None = None
        self.supervisor = Supervisor(self.simulation, self.cluster)
        self._injector: FaultInjector | None = None

    def run(self) -> RunResult:
        """All of it; never raises what the run finds."""
        failure = ""
        try:
            with self.cluster.watch.on():
                self.simulation.run(self._scenario())
        except SimulationFailedError as failed:
            failure = _words_of(failed.__cause__ or failed)
        self._count_effects()
        return RunResult(
            self.plan,
            self.simulation.trace.digest,
            self.cluster.coverage,
            failure,
            tuple(self.simulation.trace.tail()),
        )

    def client(self, name: str, main: Callable[[Runtime], Awaitable[None]]) -> SimProcess:
        """A process of a client, running."""
        process = self.simulation.process(name, main)
        process.start()
        return process

    async def wait(self, number: int, what: str, condition: Callable[[], bool], *, s_max: float) -> None:
        """Let time pass until a condition holds, which is invariant `number`'s demand."""

        def holds() -> bool:
            self.supervisor.check()
            return condition()

        checks = Checks(self.cluster.coverage.checks)
        try:
            await wait_until(holds, poll_s=0.05, timeout_s=s_max)
        except TimeoutError:
            checks.require(number, False, f"not within {s_max} s: {what}")
        checks.require(number, True, what)

    async def _scenario(self) -> None:
        self.cluster.start_all()
        self.client("observer", self._observe)
        self.client("admin", self.admin.run)
        await self.wait(29, "the cluster serves", lambda: self.cluster.is_serving, s_max=START_S_MAX)
        clients: list[Producer | Consumer | Repeater] = [*self.producers, *self.consumers, *self.repeaters]
        for client in clients:
            self.client(client.name, client.run)
        await self.wait(
            29, "somebody was answered", lambda: bool(self.history.acknowledged), s_max=START_S_MAX
        )
        for rival in self.rivals:  # not before the topic has its partitions: a rival leads none
            self.client(rival.name, rival.run)
        injector = self._injector = FaultInjector(
            self.simulation, self.cluster, list(self.simulation.processes), self.cluster.coverage
        )
        supervision = asyncio.get_running_loop().create_task(self.supervisor.run())
        faults = asyncio.get_running_loop().create_task(self._strike(injector))
        await asyncio.wait([supervision, faults], return_when=asyncio.FIRST_COMPLETED)
        if supervision.done():
            supervision.result()
        supervision.cancel()
        faults.result()
        injector.heal()
        await Judgement(self).judge()

    async def _strike(self, injector: FaultInjector) -> None:
        schedule = self.plan.schedule
        began = self.simulation.loop.time()
        await injector.run(schedule.faults)
        await asyncio.sleep(max(began + schedule.safety_s - self.simulation.loop.time(), 0.0))

    async def _observe(self, runtime: Runtime) -> None:
        """Somebody who follows the metadata, and checks what every few batches make of it."""
        observer = self.observer = SubscriptionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            addresses=self.cluster.addresses,
        )
        self.cluster.watch.follow(observer)
        observer.listeners.append(
            lambda batch: None if batch.index % VALIDATED_EVERY else validate(observer.image)
        )
        observer.image_listeners.append(validate)
        await observer.run()

    def _make_rivals(self) -> list[Rival]:
        if self.cluster.store is None:
            return []
        return [
            Rival(
                f"rival-{number}",
                compose_node_id(ORDINAL, FIRST_RIVAL + number),
                self.arena,
                self.cluster.store,
                self.cluster.addresses,
            )
            for number in range(self.plan.rivals)
        ]

    def _count_effects(self) -> None:
        coverage, hub = self.cluster.coverage, self.simulation.network
        coverage.runs = 1
        coverage.virtual_s = self.simulation.loop.time()
        coverage.events = self.simulation.trace.events
        effects, states = coverage.effects, coverage.states
        effects["frames lost"] += hub.lost_frames
        effects["connections abandoned by one end"] += hub.abandoned_connections
        effects["frames held up by a clog"] += hub.stalled_frames
        disks = [process.disk for process in self.cluster.processes.values()]
        effects["files that a power loss tore"] += sum(disk.torn_files for disk in disks)
        effects["disk operations that failed"] += sum(disk.failed_operations for disk in disks)
        effects["disks that rotted"] += len(self.cluster.rotten)
        if self.cluster.store is not None:
            bucket = self.cluster.store.bucket
            effects["calls of the store that were applied and not answered"] += bucket.unanswered
            effects["calls of the store that failed"] += bucket.calls.total() - bucket.applied.total()
            effects["reads of the store that came back short"] += bucket.short_reads
        effects["processes ended by a fault"] += self._injector.crashes if self._injector is not None else 0
        states["records acknowledged to producers"] += len(self.history.acknowledged)
        states["records read by consumers"] += self.history.reads
        states["batches that producers sent again"] += sum(producer.repeats for producer in self.producers)
        states["images replaced by a snapshot"] += self.cluster.watch.resets
        states["terms in which a controller led"] += len(self.cluster.watch.leaders)
        states["images that a controller took from another"] += self.cluster.watch.installs
        states["runs with three controllers"] += self.plan.controllers == 3
        states["records of metadata committed"] += self.ledger.records
        states["rivals: commits"] += self.arena.commits
        states["rivals: refusals"] += self.arena.fenced
        states["repeaters: repeats answered"] += sum(each.repeats for each in self.repeaters)
        states["repeaters: other bodies refused"] += sum(each.mismatches for each in self.repeaters)


def _words_of(error: BaseException) -> str:
    """The innermost reason, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
