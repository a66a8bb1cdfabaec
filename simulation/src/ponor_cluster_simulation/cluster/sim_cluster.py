"""A whole cluster in one thread: the services' own `app.run` as simulated processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from ponor_broker.app import run as run_broker
from ponor_broker.options import BrokerOptions
from ponor_broker.settings import BrokerSettings
from ponor_compactor.app import run as run_compactor
from ponor_compactor.pace import Pace
from ponor_compactor.settings import CompactorSettings
from ponor_controller.app import run as run_controller
from ponor_controller.consensus.members import Member
from ponor_controller.options import FIRST_CONTROLLER_NUMBER, ControllerOptions
from ponor_controller.settings import ControllerSettings
from ponor_gc.app import run as run_gc
from ponor_gc.settings import GcSettings
from ponor_metadata.client.node_process import NodeOptions
from ponor_metadata.client.store_marker import PREFIX
from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.identity import ClusterOrdinal, NodeId, compose_node_id
from ponor_runtime.object_store import MultipartStore, ObjectStore
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from ponor_simulation.disk import FlippedBit
from ponor_simulation.multipart_store import SimMultipartStore
from ponor_simulation.object_store import SimObjectStore
from ponor_simulation.process import SimProcess
from ponor_simulation.simulation import Simulation
from s3stream.stores.directory import DirectoryObjectStore
from s3stream.stores.open_store import wrap_multipart_store, wrap_object_store, wrap_stores
from s3stream.stores.probe.start_check import Condition
from s3stream.stores.retrying import RetrySettings

from ponor_cluster_simulation.cluster.cluster_watch import ClusterWatch
from ponor_cluster_simulation.cluster.kafka_frontend import KAFKA, bind_simulated
from ponor_cluster_simulation.coverage import Coverage
from ponor_cluster_simulation.invariants.registry import Checks

ORDINAL: Final = ClusterOrdinal(1)
CONTROLLER_ADDRESS: Final = "controller:9090"
KAFKA_PORT: Final = 9092
KAFKA_ADDRESS: Final = f"broker:{KAFKA_PORT}"
"""Kafka address of the broker in clusters with one broker."""
SERVICE_PORT: Final = 9090
PEER_PORT: Final = 9091
STORE_DIRECTORY: Final = PurePosixPath("/store")
FIRST_GC: Final = 1_000
FIRST_COMPACTOR: Final = 2_000
"""Lowest node number of collectors, and of compactors."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of every service."""

    controller: ControllerSettings = field(default_factory=ControllerSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    gc: GcSettings = field(default_factory=GcSettings)
    compactor: CompactorSettings = field(default_factory=CompactorSettings)
    retry: RetrySettings = field(default_factory=RetrySettings)


class SimCluster:
    """Controllers, brokers, a garbage collector, and optional compactors.

    With `store_in_directory` the objects are files of the broker's machine; the collector runs on this
    machine and crashes with the broker. Otherwise every service has its own machine, and a bucket stores the
    objects.

    Attributes:
        processes: by name. A collector that shares the broker's machine has no entry.
        serving: services that called `ready` in their current life.
        coverage: counters of all ended lives.
        flipped_bits: the flipped bit of each damaged disk.
    """

    def __init__(
        self,
        simulation: Simulation,
        settings: ClusterSettings,
        *,
        store_in_directory: bool = False,
        controllers: int = 1,
        brokers: int = 1,
        wal: WalKind = WalKind.FILE,
        compactors: int = 0,
        part_size_bytes_min: int = 1,
    ) -> None:
        assert (brokers, compactors) == (1, 0) or not store_in_directory, (
            "a store in a directory allows one broker and no compactor"
        )
        self._simulation = simulation
        self._settings = settings
        self.coverage = Coverage()
        self.watch = ClusterWatch(Checks(self.coverage.checks))
        self.flipped_bits: dict[str, FlippedBit] = {}
        self.store: SimObjectStore | None = None if store_in_directory else simulation.object_store()
        self.controllers = controller_names(controllers)
        self.addresses = tuple(f"{name}:{SERVICE_PORT}" for name in self.controllers)
        self.brokers = broker_names(brokers)
        self.compactors = compactor_names(compactors)
        self._part_size_bytes_min = part_size_bytes_min
        self.kafka_addresses = tuple(f"{name}:{KAFKA_PORT}" for name in self.brokers)
        self.wal = wal
        self.processes: dict[str, SimProcess] = {
            name: simulation.process(name, partial(self._controller, name)) for name in self.controllers
        }
        if store_in_directory:
            self.processes["broker"] = simulation.process("broker", self._broker_and_gc)
        else:
            for name in self.brokers:
                self.processes[name] = simulation.process(name, partial(self._broker_alone, name))
            self.processes["gc"] = simulation.process("gc", self._gc_alone)
            for name in self.compactors:
                self.processes[name] = simulation.process(name, partial(self._compactor, name))
        for name, process in self.processes.items():
            process.on_end = partial(self._ended, name)
        self.serving: dict[str, None] = {}
        self.lost_rights: Callable[[str], bool] = lambda _: False
        """Returns whether a broker was fenced and may therefore stop; the run sets it."""
        self._stops: dict[str, asyncio.Event] = {}

    def start(self, name: str) -> None:
        """Start a process."""
        self.serving.pop(name, None)
        self.processes[name].start()

    def start_all(self) -> None:
        """Start every process that is not running."""
        for name, process in self.processes.items():
            if not process.running:
                self.start(name)

    def stop(self, name: str) -> None:
        """Request an orderly shutdown, as SIGTERM does."""
        self._stops[name].set()

    @property
    def is_serving(self) -> bool:
        """Whether every process is running and ready."""
        return all(process.running and name in self.serving for name, process in self.processes.items())

    @property
    def has_leader(self) -> bool:
        """Whether a controller has detected that it leads."""
        return self.leader is not None

    @property
    def leader(self) -> str | None:
        """The controller that leads; if several claim to lead, the one with the newest term."""
        leading = {
            self.watch.controllers[name].consensus.term: name
            for name in self.controllers
            if self.processes[name].running
            and name in self.serving
            and self.watch.controllers[name].leadership.is_leading
        }
        return leading[max(leading)] if leading else None

    def check_alive(self) -> None:
        """Raise the error of a process that stopped itself."""
        for name, process in self.processes.items():
            if process.failure is not None:
                raise AssertionError(f"{name} stopped: {process.failure!r}") from process.failure

    async def keys(self) -> set[str]:
        """The keys in the store, without cluster markers."""
        if self.store is not None:
            return {key for key in self.store.bucket.objects if not key.startswith(PREFIX)}
        runtime = self.processes[self.brokers[0]].runtime
        assert runtime is not None
        store = await self._open_store(runtime)
        try:
            return {info.key async for info in store.list("") if not info.key.startswith(PREFIX)}
        finally:
            await store.close()

    def node_of(self, name: str) -> NodeId:
        """The node id of a broker or compactor."""
        if name in self.compactors:
            return compose_node_id(ORDINAL, FIRST_COMPACTOR + self.compactors.index(name))
        return compose_node_id(ORDINAL, self.brokers.index(name))

    def broker_of(self, node_id: int) -> str | None:
        """The broker with a node id; None if it is no broker of this cluster."""
        return next((name for name in self.brokers if self.node_of(name) == node_id), None)

    def name_of(self, node_id: int) -> str | None:
        """The process of a broker, compactor or collector with a node id; None for other nodes."""
        if node_id == compose_node_id(ORDINAL, FIRST_GC):
            return "gc" if "gc" in self.processes else None
        names = (*self.brokers, *self.compactors)
        return next((name for name in names if self.node_of(name) == node_id), None)

    def _ended(self, name: str, runtime: Runtime) -> None:
        self.serving.pop(name, None)
        self.coverage.states[f"{name.partition('-')[0]}: lives"] += 1
        self.coverage.harvest(name, runtime.telemetry)

    # Programs

    async def _controller(self, name: str, runtime: Runtime) -> None:
        options = self._controller_options(name)
        await run_controller(
            runtime,
            self._settings.controller,
            options,
            stop=self._new_stop(name),
            ready=lambda _: self._ready(name),
        )

    def _controller_options(self, name: str) -> ControllerOptions:
        data, listen = PurePosixPath("/controller"), f"{name}:{SERVICE_PORT}"
        if len(self.controllers) == 1:
            return ControllerOptions(data, listen, ORDINAL, format=True)
        voters = tuple(
            Member(_controller_id(number), b"", f"{host}:{PEER_PORT}", f"{host}:{SERVICE_PORT}")
            for number, host in enumerate(self.controllers)
        )
        return ControllerOptions(
            data,
            listen,
            ORDINAL,
            node_id=_controller_id(self.controllers.index(name)),
            peer_listen=f"{name}:{PEER_PORT}",
            voters=voters,
            format=True,
        )

    async def _broker_alone(self, name: str, runtime: Runtime) -> None:
        await self._broker(name, runtime, self._new_stop(name))

    async def _gc_alone(self, runtime: Runtime) -> None:
        await self._gc(runtime, self._new_stop("gc"))

    async def _broker_and_gc(self, runtime: Runtime) -> None:
        stop = self._new_stop("broker")
        await asyncio.gather(self._broker("broker", runtime, stop), self._gc(runtime, stop))

    async def _broker(self, name: str, runtime: Runtime, stop: asyncio.Event) -> None:
        options = BrokerOptions(
            node_id=self.node_of(name),
            data=PurePosixPath("/broker"),
            controllers=self.addresses,
            kafka_host=name,
            kafka_port=KAFKA_PORT,
            wal=self.wal,
        )

        def ready(_: ServiceAddresses) -> None:
            self._ready(name)

        store = await self._open_store(runtime)
        try:
            await run_broker(
                runtime,
                self._settings.broker,
                options,
                store=store,
                stop=stop,
                ready=ready,
                condition=Condition.PROVEN,
                bind=bind_simulated,
                connect_peer=lambda address: runtime.network.connect(address, KAFKA),
            )
        finally:
            await store.close()

    async def _gc(self, runtime: Runtime, stop: asyncio.Event) -> None:
        options = NodeOptions(compose_node_id(ORDINAL, FIRST_GC), self.addresses)
        store = await self._open_store(runtime)
        try:
            await run_gc(
                runtime,
                self._settings.gc,
                options,
                store=store,
                stop=stop,
                ready=lambda _: self._ready("gc"),
                multipart=self._parts(runtime, store),
            )
        finally:
            await store.close()

    async def _compactor(self, name: str, runtime: Runtime) -> None:
        settings = self._settings.compactor
        pace = Pace(runtime.clock, settings, runtime.telemetry)
        assert self.store is not None
        parts = SimMultipartStore(self.store, part_size_bytes_min=self._part_size_bytes_min)
        store, multipart = wrap_stores(self.store, parts, runtime=runtime, policy=pace)
        await run_compactor(
            runtime,
            settings,
            NodeOptions(self.node_of(name), self.addresses),
            store=store,
            multipart=multipart,
            stop=self._new_stop(name),
            ready=lambda _: self._ready(name),
            pace=pace,
        )

    async def _open_store(self, runtime: Runtime) -> ObjectStore:
        raw: ObjectStore
        if self.store is None:
            raw = await DirectoryObjectStore.open(runtime.disk, STORE_DIRECTORY)
        else:
            raw = self.store
        return wrap_object_store(raw, runtime=runtime, retry=self._settings.retry)

    def _parts(self, runtime: Runtime, store: ObjectStore) -> MultipartStore | None:
        """The store's multipart port; None for a directory, where no compactor runs."""
        if self.store is None:
            return None
        raw = SimMultipartStore(self.store, part_size_bytes_min=self._part_size_bytes_min)
        return wrap_multipart_store(raw, store, runtime=runtime, retry=self._settings.retry)

    def _new_stop(self, name: str) -> asyncio.Event:
        stop = self._stops[name] = asyncio.Event()
        return stop

    def _ready(self, name: str) -> None:
        self.serving[name] = None
        process = self.processes.get(name)
        if process is not None and process.runtime is not None:
            process.runtime.health.announce()


def controller_names(count: int) -> tuple[str, ...]:
    """Process names of the controllers; they are also host names."""
    return ("controller",) if count == 1 else tuple(f"controller-{number}" for number in range(count))


def broker_names(count: int) -> tuple[str, ...]:
    """Process names of the brokers; they are also host names."""
    return ("broker",) if count == 1 else tuple(f"broker-{number}" for number in range(count))


def compactor_names(count: int) -> tuple[str, ...]:
    """Process names of the compactors; they are also host names."""
    return tuple(f"compactor-{number}" for number in range(count))


def _controller_id(number: int) -> NodeId:
    return compose_node_id(ORDINAL, FIRST_CONTROLLER_NUMBER + number)
