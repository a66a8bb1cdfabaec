"""One run: a plan is carried out, first the safety phase under faults, then healing and the liveness phase, and the judgement.

What lives here: the order of things. Faults are done by `faults.injector`, invariants are looked at by `cluster_watch` and the ledger while it runs, what must hold at the end is `judgement`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_metadata.subscription import SubscriptionClient
from ponor_metadata.validate import validate
from ponor_runtime.identity import compose_node_id
from ponor_runtime.runtime import Runtime

from ponor_simulation.cluster import ORDINAL, SimCluster
from ponor_simulation.coverage import Coverage
from ponor_simulation.effects import count_effects
from ponor_simulation.faults.injector import FaultInjector
from ponor_simulation.invariants.fences import Fences
from ponor_simulation.invariants.ledger import Ledger
from ponor_simulation.invariants.registry import Checks
from ponor_simulation.judgement import Judgement
from ponor_simulation.plan import COORDINATOR_PARTITIONS, RunPlan
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation, SimulationFailedError
from ponor_simulation.supervision import Supervisor
from ponor_simulation.workload.admin import Admin
from ponor_simulation.workload.broker_reader import BrokerReader
from ponor_simulation.workload.cold_reader import ColdReader, StreamHistory
from ponor_simulation.workload.committer import Committer
from ponor_simulation.workload.consumer import Consumer
from ponor_simulation.workload.history import ClusterHistory
from ponor_simulation.workload.keyed import TOPIC as KEYED
from ponor_simulation.workload.keyed import KeyedHistory, KeyedReader, KeyedWriter
from ponor_simulation.workload.loyal_reader import IndexHistory, LoyalReader
from ponor_simulation.workload.meddler import Meddler
from ponor_simulation.workload.mover import Mover
from ponor_simulation.workload.producer import Producer
from ponor_simulation.workload.repeater import Repeater
from ponor_simulation.workload.rivals import Arena, Rival

TOPIC: Final = "orders"
COORDINATORS: Final = "__consumer_offsets"
PASSING: Final = {"internal.segment.bytes": "9500", "retention.bytes": "10000"}
"""Of topics that are filled and deleted: where there is something to compact they are also trimmed."""
START_S_MAX: Final = 30.0
FIRST_RIVAL: Final = 50
FIRST_REPEATER: Final = 60
FIRST_MEDDLER: Final = 70
FENCE_HORIZON: Final = 2
"""Session timeouts, and re-election timeouts, in which a fault of a broker may still lead to its fence."""
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
        self.cluster = self._make_cluster()
        self.history = ClusterHistory()
        checks = Checks(self.cluster.coverage.checks)
        self.ledger = self._make_ledger(checks)
        self.cluster.watch.on_batch = self._committed
        self.cluster.lost_rights = lambda name: self.ledger.streams.is_fenced(self.cluster.node_of(name))
        self.producers = self._make_producers()
        self.consumers = [self.consumer(f"consumer-{number}") for number in range(plan.consumers)]
        self.admin = Admin(
            TOPIC,
            plan.partitions,
            bootstrap=self.cluster.kafka_addresses,
            passing_configs=PASSING if plan.compaction.compactors else None,
        )
        self.movers = self._make_movers()
        self.committers = self._make_committers()
        self.arena = Arena(shares_objects=plan.compaction.wears_early)
        self.rivals = self._make_rivals()
        self.stream_history = StreamHistory()
        self.ledger.snapshots.is_closed = self.stream_history.closing.__contains__
        self.cold_readers = self._make_cold_readers()
        self.keyed_history = KeyedHistory()
        self.keyed_writers = self._make_keyed_writers()
        self.keyed_readers = [self.keyed_reader("keyed-reader-0") for _ in self.keyed_writers]
        self.repeaters = self._make_repeaters(checks)
        self.loyal_readers = self._make_loyal_readers(checks)
        self.broker_readers = self._make_broker_readers(checks)
        self.meddlers = self._make_meddlers(checks)
        self.observer: SubscriptionClient | None = None
        self.supervisor = Supervisor(self.simulation, self.cluster)
        self.injector: FaultInjector | None = None
        controller = plan.settings.controller
        self.fences = Fences(
            checks,
            self.simulation.loop.time,
            FENCE_HORIZON * (controller.session_timeout_ms + controller.reelection_timeout_ms) / 1000,
            lambda name: 0.0 if self.injector is None else self.injector.cut_off_until_s.get(name, 0.0),
            lambda name: 0.0 if self.injector is None else self.injector.hindered_until_s.get(name, 0.0),
        )

    def run(self) -> RunResult:
        """All of it; never raises what the run finds."""
        failure = ""
        try:
            with self.cluster.watch.on():
                self.simulation.run(self._scenario())
        except SimulationFailedError as failed:
            failure = _words_of(failed.__cause__ or failed)
        count_effects(self)
        return RunResult(
            self.plan,
            self.simulation.trace.digest,
            self.cluster.coverage,
            failure,
            tuple(self.simulation.trace.tail()),
        )

    def consumer(self, name: str) -> Consumer:
        """One that reads all partitions; not running yet."""
        return Consumer(
            name,
            TOPIC,
            self.plan.partitions,
            self.history,
            bootstrap=self.cluster.kafka_addresses,
            pause_s_max=self.plan.pause_s_max,
        )

    def keyed_reader(self, name: str, *, stop: bool = False) -> KeyedReader:
        """One that reads the compacted topic; not running yet. `stop`: only once."""
        return KeyedReader(
            name,
            self.keyed_history,
            Checks(self.cluster.coverage.checks),
            bootstrap=self.cluster.kafka_addresses,
            stop=stop,
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
        for number, committer in enumerate(self.committers):
            self.client(f"group-{number}", committer.run)
        for client in clients:
            self.client(client.name, client.run)
        await self.wait(
            29, "somebody was answered", lambda: bool(self.history.acknowledged), s_max=START_S_MAX
        )
        for rival in self.rivals:  # not before the topic has its partitions: a rival leads none
            self.client(rival.name, rival.run)
        for mover in self.movers:
            self.client("mover", mover.run)
        for reader in self.cold_readers:
            self.client(reader.name, reader.run)
        for writer in self.keyed_writers:
            self.client("keyed-writer", writer.run)
        for keyed in self.keyed_readers:
            self.client(keyed.name, keyed.run)
        for loyal in self.loyal_readers:
            self.client(loyal.name, loyal.run)
        for at_broker in self.broker_readers:
            self.client(at_broker.name, at_broker.run)
        for meddler in self.meddlers:
            self.client(meddler.name, meddler.run)
        injector = self.injector = FaultInjector(
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

    def _make_cluster(self) -> SimCluster:
        plan = self.plan
        cluster = SimCluster(
            self.simulation,
            plan.settings,
            store_in_directory=not plan.has_bucket,
            controllers=plan.controllers,
            brokers=plan.brokers,
            wal=plan.wal,
            compactors=plan.compaction.compactors,
            part_size_bytes_min=plan.compaction.part_size_bytes_min,
        )
        if cluster.store is not None:
            cluster.store.listing_page_keys = plan.listing_page_keys
        return cluster

    def _make_ledger(self, checks: Checks) -> Ledger:
        """What the invariants remember; of a bucket it hears every put and every deletion."""
        bucket = None if self.cluster.store is None else self.cluster.store.bucket
        controller = self.plan.settings.controller
        ledger = Ledger(
            checks,
            bucket,
            controller.destroy_delay_ms,
            controller.snapshot_leases.snapshot_pinned_bytes_max,
        )
        if bucket is not None:
            bucket.on_put, bucket.on_delete = ledger.put, ledger.deleted
        return ledger

    def _make_producers(self) -> list[Producer]:
        return [
            Producer(
                f"producer-{number}",
                TOPIC,
                self.plan.partitions,
                self.history,
                bootstrap=self.cluster.kafka_addresses,
                pause_s_max=self.plan.pause_s_max,
            )
            for number in range(self.plan.producers)
        ]

    def _make_committers(self) -> list[Committer]:
        return [
            Committer(
                f"group-{number}",
                TOPIC,
                bootstrap=self.cluster.kafka_addresses,
                pause_s_max=self.plan.pause_s_max,
            )
            for number in range(self.plan.groups)
        ]

    def _make_keyed_writers(self) -> list[KeyedWriter]:
        return [
            KeyedWriter(
                self.keyed_history,
                bootstrap=self.cluster.kafka_addresses,
                pause_s_max=self.plan.pause_s_max,
            )
            for _ in range(self.plan.compaction.keyed)
        ]

    def _make_meddlers(self, checks: Checks) -> list[Meddler]:
        return [
            Meddler(
                f"meddler-{number}",
                compose_node_id(ORDINAL, FIRST_MEDDLER + number),
                self.cluster.addresses,
                checks,
            )
            for number in range(self.plan.compaction.meddlers)
        ]

    def _make_repeaters(self, checks: Checks) -> list[Repeater]:
        return [
            Repeater(
                f"repeater-{number}",
                compose_node_id(ORDINAL, FIRST_REPEATER + number),
                self.cluster.addresses,
                checks,
            )
            for number in range(self.plan.repeaters)
        ]

    def _make_loyal_readers(self, checks: Checks) -> list[LoyalReader]:
        def shown_index() -> int:
            return 0 if self.observer is None else self.observer.image.index

        history = IndexHistory(shown_index)
        return [
            LoyalReader(f"loyal-{number}", address, history, checks)
            for number, address in enumerate(self.cluster.addresses[: self.plan.loyal_readers])
        ]

    def _make_broker_readers(self, checks: Checks) -> list[BrokerReader]:
        return [
            BrokerReader(
                f"reader-of-{name}",
                address,
                TOPIC,
                self.history,
                self.committers,
                checks,
                session_timeout_ms=self.plan.settings.controller.session_timeout_ms,
            )
            for name, address in list(zip(self.cluster.brokers, self.cluster.kafka_addresses, strict=True))[
                : self.plan.broker_readers
            ]
        ]

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

    def _make_cold_readers(self) -> list[ColdReader]:
        if self.cluster.store is None:
            return []
        checks = Checks(self.cluster.coverage.checks)
        return [
            ColdReader(
                f"cold-reader-{number}",
                self.stream_history,
                self.cluster.store,
                self.cluster.addresses,
                checks,
            )
            for number in range(self.plan.compaction.readers)
        ]

    def _make_movers(self) -> list[Mover]:
        if self.plan.mover_pause_s_max is None:
            return []
        topics = {TOPIC: self.plan.partitions, COORDINATORS: COORDINATOR_PARTITIONS}
        if self.plan.compaction.keyed:
            topics[KEYED] = 1
        return [
            Mover(
                topics,
                bootstrap=self.cluster.kafka_addresses,
                nodes=[self.cluster.node_of(name) for name in self.cluster.brokers],
                pause_s_max=self.plan.mover_pause_s_max,
            )
        ]

    def _committed(self, batch: RecordBatch) -> None:
        self.ledger.batch(batch)
        for record in batch.records:
            self.fences.committed(record)
            if self.injector is not None:
                self.injector.committed(record)
                if record.WhichOneof("kind") == "node_fenced":
                    self._fenced(record.node_fenced.node_id)

    def _fenced(self, node_id: int) -> None:
        name = self.cluster.broker_of(node_id)
        if name is not None:
            self.fences.fenced(self.cluster.processes[name], node_id)


def _words_of(error: BaseException) -> str:
    """The innermost reason, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
