"""A whole cluster in one thread: the services' own `app.run`, as simulated processes on faulty disks, networks and stores.

What lives here: which processes there are, what each is given, and how a life begins. What happens to them is the scenario's; what must hold afterwards, too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from ponor_broker.app import BrokerOptions
from ponor_broker.app import run as run_broker
from ponor_broker.settings import BrokerSettings
from ponor_controller.app import run as run_controller
from ponor_controller.consensus.members import Member
from ponor_controller.options import FIRST_CONTROLLER_NUMBER, ControllerOptions
from ponor_controller.settings import ControllerSettings
from ponor_gc.app import GcOptions
from ponor_gc.app import run as run_gc
from ponor_gc.settings import GcSettings
from ponor_runtime.identity import ClusterOrdinal, NodeId, compose_node_id
from ponor_runtime.object_store import ObjectStore
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from s3stream.stores.directory import DirectoryObjectStore
from s3stream.stores.open_store import wrap_object_store
from s3stream.stores.retrying import RetrySettings

from ponor_simulation.cluster_watch import ClusterWatch
from ponor_simulation.coverage import Coverage
from ponor_simulation.faults.rot import Rotten
from ponor_simulation.invariants.registry import Checks
from ponor_simulation.kafka_frontend import bind_simulated
from ponor_simulation.object_store import SimObjectStore
from ponor_simulation.process import SimProcess
from ponor_simulation.simulation import Simulation

ORDINAL: Final = ClusterOrdinal(1)
CONTROLLER_ADDRESS: Final = "controller:9090"
KAFKA_HOST: Final = "broker"
KAFKA_PORT: Final = 9092
KAFKA_ADDRESS: Final = f"{KAFKA_HOST}:{KAFKA_PORT}"
SERVICE_PORT: Final = 9090
PEER_PORT: Final = 9091
STORE_DIRECTORY: Final = PurePosixPath("/store")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of every service."""

    controller: ControllerSettings = field(default_factory=ControllerSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    gc: GcSettings = field(default_factory=GcSettings)
    retry: RetrySettings = field(default_factory=RetrySettings)


class SimCluster:
    """A controller, a broker and a garbage collector.

    With `store_in_directory` the objects are files of one machine, on which broker and garbage collector run and crash together; otherwise every service has a
    machine, and the bucket is nobody's.

    Attributes:
        processes: by name; `gc` is not among them when it shares the broker's machine.
        serving: names of the services that called `ready` in their present life.
        coverage: what all lives counted, once `gather` was called.
        rotten: processes whose disk lost a bit, and where.
    """

    def __init__(
        self,
        simulation: Simulation,
        settings: ClusterSettings,
        *,
        store_in_directory: bool = False,
        controllers: int = 1,
    ) -> None:
        self._simulation = simulation
        self._settings = settings
        self.coverage = Coverage()
        self.watch = ClusterWatch(Checks(self.coverage.checks))
        self.rotten: dict[str, Rotten] = {}
        self.store: SimObjectStore | None = None if store_in_directory else simulation.object_store()
        self.controllers = controller_names(controllers)
        self.addresses = tuple(f"{name}:{SERVICE_PORT}" for name in self.controllers)
        self.processes: dict[str, SimProcess] = {
            name: simulation.process(name, partial(self._controller, name)) for name in self.controllers
        }
        if store_in_directory:
            self.processes["broker"] = simulation.process("broker", self._broker_and_gc)
        else:
            self.processes["broker"] = simulation.process("broker", self._broker_alone)
            self.processes["gc"] = simulation.process("gc", self._gc_alone)
        for name, process in self.processes.items():
            process.on_end = partial(self._ended, name)
        self.serving: dict[str, None] = {}
        self._stops: dict[str, asyncio.Event] = {}

    def start(self, name: str) -> None:
        """Begin a new life."""
        self.serving.pop(name, None)
        self.processes[name].start()

    def start_all(self) -> None:
        """Begin a new life of everything that does not run."""
        for name, process in self.processes.items():
            if not process.running:
                self.start(name)

    def stop(self, name: str) -> None:
        """Ask a process to end in order, as SIGTERM does."""
        self._stops[name].set()

    @property
    def is_serving(self) -> bool:
        """Whether every process runs and serves."""
        return all(process.running and name in self.serving for name, process in self.processes.items())

    @property
    def has_leader(self) -> bool:
        """Whether a controller leads, and knows it."""
        return self.leader is not None

    @property
    def leader(self) -> str | None:
        """The controller that leads; of two that believe so the one of the newer term."""
        leading = {
            self.watch.controllers[name].consensus.term: name
            for name in self.controllers
            if self.processes[name].running
            and name in self.serving
            and self.watch.controllers[name].leadership.is_leading
        }
        return leading[max(leading)] if leading else None

    def check_alive(self) -> None:
        """Raise what ended a process by itself: nothing that this simulation does to a cluster is a reason to stop."""
        for name, process in self.processes.items():
            if process.failure is not None:
                raise AssertionError(f"{name} stopped: {process.failure!r}") from process.failure

    async def keys(self) -> set[str]:
        """What the store holds."""
        if self.store is not None:
            return set(self.store.bucket.objects)
        runtime = self.processes["broker"].runtime
        assert runtime is not None
        store = await self._open_store(runtime)
        try:
            return {info.key async for info in store.list("")}
        finally:
            await store.close()

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
            return ControllerOptions(data, listen, ORDINAL)
        voters = tuple(
            Member(
                _controller_id(number), bytes([number]) * 16, f"{host}:{PEER_PORT}", f"{host}:{SERVICE_PORT}"
            )
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

    async def _broker_alone(self, runtime: Runtime) -> None:
        await self._broker(runtime, self._new_stop("broker"))

    async def _gc_alone(self, runtime: Runtime) -> None:
        await self._gc(runtime, self._new_stop("gc"))

    async def _broker_and_gc(self, runtime: Runtime) -> None:
        stop = self._new_stop("broker")
        await asyncio.gather(self._broker(runtime, stop), self._gc(runtime, stop))

    async def _broker(self, runtime: Runtime, stop: asyncio.Event) -> None:
        options = BrokerOptions(
            node_id=compose_node_id(ORDINAL, 0),
            data=PurePosixPath("/broker"),
            controllers=self.addresses,
            kafka_host=KAFKA_HOST,
            kafka_port=KAFKA_PORT,
        )

        def ready(_: ServiceAddresses) -> None:
            self._ready("broker")

        store = await self._open_store(runtime)
        try:
            await run_broker(
                runtime,
                self._settings.broker,
                options,
                store=store,
                stop=stop,
                ready=ready,
                bind=bind_simulated,
            )
        finally:
            await store.close()

    async def _gc(self, runtime: Runtime, stop: asyncio.Event) -> None:
        options = GcOptions(compose_node_id(ORDINAL, 1_000), self.addresses)
        store = await self._open_store(runtime)
        try:
            await run_gc(
                runtime,
                self._settings.gc,
                options,
                store=store,
                stop=stop,
                ready=lambda _: self._ready("gc"),
            )
        finally:
            await store.close()

    async def _open_store(self, runtime: Runtime) -> ObjectStore:
        raw: ObjectStore
        if self.store is None:
            raw = await DirectoryObjectStore.open(runtime.disk, STORE_DIRECTORY)
        else:
            raw = self.store
        return wrap_object_store(raw, runtime=runtime, retry=self._settings.retry)

    def _new_stop(self, name: str) -> asyncio.Event:
        stop = self._stops[name] = asyncio.Event()
        return stop

    def _ready(self, name: str) -> None:
        self.serving[name] = None


def controller_names(count: int) -> tuple[str, ...]:
    """Names of the processes of so many controllers; they are also their hosts."""
    return ("controller",) if count == 1 else tuple(f"controller-{number}" for number in range(count))


def _controller_id(number: int) -> NodeId:
    return compose_node_id(ORDINAL, FIRST_CONTROLLER_NUMBER + number)
