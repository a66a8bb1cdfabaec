"""The composition root of the broker: builds every part by constructor, serves until told to stop, closes in order.

What lives here: construction and order, no decisions. The Kafka port is bound first (its number goes to the controller), then the node
registers, recovers its write-ahead log, opens its partitions, and only then lets clients in.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Protocol, TypeAlias

from ponor_metadata.controllers import KnownControllers
from ponor_metadata.quorum_client import QuorumClient
from ponor_metadata.rows import NodeRole
from ponor_metadata.session import NodeFencedError, NodeIdentity, SessionClient
from ponor_metadata.subscription import SubscriptionClient
from ponor_runtime.disk import DiskLock
from ponor_runtime.identity import NodeId
from ponor_runtime.object_store import ObjectStore
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from ponor_runtime.settings import describe_values
from ponor_runtime.tasks import BackgroundTasks
from s3stream.client import StreamClient
from s3stream.file_wal import FileWal

from ponor_broker.answer_backlog import AnswerBacklog
from ponor_broker.configs.static_values import static_values
from ponor_broker.connection import RequestDispatcher
from ponor_broker.kafka_listener import KafkaListener, ListenerSettings
from ponor_broker.services import BrokerServices
from ponor_broker.settings import BrokerSettings
from ponor_broker.storage.object_manager import ControllerObjectManager
from ponor_broker.storage.stream_manager import ControllerStreamManager

LOG: Final = logging.getLogger("ponor.broker")
WAL_DIRECTORY: Final = "wal"
FIRST_OPENS_S_MAX: Final = 30.0
"""Clients are let in after this even if a partition still cannot be opened: the others can be used."""


class DirectoryInUseError(Exception):
    """Another broker has the data directory; the message says what to do."""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """What differs from one broker to another. `advertised_host` is what clients are told, the host that is bound if empty."""

    node_id: NodeId
    data: PurePath
    controllers: tuple[str, ...]
    kafka_host: str = "127.0.0.1"
    kafka_port: int = 0
    advertised_host: str = ""
    object_store: str = ""
    """The store's URL as tools may read it; the store itself is given to `run`."""


class Frontend(Protocol):
    """Where Kafka requests come from: the listener, or the simulator."""

    @property
    def port(self) -> int:
        """The port that clients are told."""
        ...

    async def serve(self, dispatcher: RequestDispatcher) -> None:
        """Let clients in."""
        ...

    async def close(self) -> None:
        """Let nobody in any more and end every connection."""
        ...


BindFrontend: TypeAlias = Callable[
    [Runtime, BrokerSettings, BrokerOptions, AnswerBacklog], Awaitable[Frontend]
]


async def bind_listener(
    runtime: Runtime, settings: BrokerSettings, options: BrokerOptions, backlog: AnswerBacklog
) -> Frontend:
    """The frontend of a real broker: sockets.

    Raises:
        OSError: the address cannot be bound; the message names it.
    """
    return await KafkaListener.bind(
        options.kafka_host,
        options.kafka_port,
        ListenerSettings(
            connections_max=settings.connections_max,
            connections_per_address_max=settings.connections_per_address_max,
            request_bytes_max=settings.request_bytes_max,
            control_request_bytes_max=settings.control_request_bytes_max,
            receive_bytes_max=settings.receive_bytes_max,
            in_flight_bytes_max=settings.in_flight_bytes_max,
            idle_ms_max=settings.connection_idle_ms_max,
            stall_ms_max=settings.request_stall_ms_max,
        ),
        backlog=backlog,
        clock=runtime.clock,
        telemetry=runtime.telemetry,
        fail_stop=runtime.fail_stop,
    )


async def run(
    runtime: Runtime,
    settings: BrokerSettings,
    options: BrokerOptions,
    *,
    store: ObjectStore,
    stop: asyncio.Event,
    ready: Callable[[ServiceAddresses], None],
    bind: BindFrontend = bind_listener,
) -> None:
    """Serve until `stop` is set. The store is the caller's to close.

    Raises:
        DirectoryInUseError: another process has the data directory.
        OSError: the Kafka port cannot be bound, or the disk failed.
        WalCorruptError, JournalIdentityError: the write-ahead log cannot be used; the message says what to do.
    """
    await runtime.disk.make_directories(options.data)
    lock = _lock(runtime, options.data)
    backlog = AnswerBacklog(settings.fetch_answers_bytes_max)
    try:
        frontend = await bind(runtime, settings, options, backlog)
        try:
            broker = _Broker(runtime, settings, options, store, frontend)
            await broker.run(backlog, stop, ready)
        finally:
            await frontend.close()
    finally:
        lock.release()


def _lock(runtime: Runtime, directory: PurePath) -> DiskLock:
    try:
        return runtime.disk.lock(directory)
    except BlockingIOError as error:
        raise DirectoryInUseError(
            f"{directory} is in use by another broker; stop it, or give another directory"
        ) from error


class _Broker:
    """One run of a broker whose port is bound: registration, storage, service, and the way back."""

    def __init__(
        self,
        runtime: Runtime,
        settings: BrokerSettings,
        options: BrokerOptions,
        store: ObjectStore,
        frontend: Frontend,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._options = options
        self._store = store
        self._frontend = frontend
        self._host = options.advertised_host or options.kafka_host
        self._tasks = BackgroundTasks(runtime.fail_stop)
        self._controllers = controllers = KnownControllers(options.controllers)
        self._subscription = SubscriptionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            addresses=controllers,
        )
        self._session = SessionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            identity=NodeIdentity(
                options.node_id,
                NodeRole.BROKER,
                runtime.randomness.token(16),
                kafka_host=self._host,
                kafka_port=frontend.port,
            ),
            addresses=controllers,
            applied_index=lambda: self._subscription.image.index,
        )

    async def run(
        self, backlog: AnswerBacklog, stop: asyncio.Event, ready: Callable[[ServiceAddresses], None]
    ) -> None:
        """Register, recover, serve until `stop`, close."""
        self._tasks.spawn(self._subscription.run(), "subscription")
        self._tasks.spawn(self._session.run(), "session")
        self._tasks.spawn(self._stop_when_fenced(), "fence watch")
        try:
            if await self._registered(stop):
                streams = await self._start_storage()
                await self._serve(streams, backlog, stop, ready)
        finally:
            await self._subscription.close()
            await self._session.close()
            await self._tasks.close()

    async def _registered(self, stop: asyncio.Event) -> bool:
        """Wait until the controller has taken this process in and the image shows it; False when told to stop before."""
        registering = asyncio.ensure_future(self._register())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((registering, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not registering.done():
                return False
            await registering
            return True
        finally:
            registering.cancel()
            stopping.cancel()

    async def _register(self) -> None:
        await self._session.ready()
        await self._subscription.wait_for(self._session.registered_index)

    async def _stop_when_fenced(self) -> None:
        await self._session.fenced.wait()
        error = NodeFencedError(
            f"node {self._options.node_id} was fenced: another process has its id, or the controller gave it up"
        )
        self._runtime.fail_stop("the session", error)

    async def _start_storage(self) -> StreamClient:
        options, storage = self._options, self._settings.storage
        wal = await FileWal.open(
            self._runtime.disk,
            options.data / WAL_DIRECTORY,
            identity=_wal_identity(self._session.cluster_id, options.node_id),
            settings=storage,
            telemetry=self._runtime.telemetry,
        )
        streams = await StreamClient.start(
            runtime=self._runtime,
            store=self._store,
            wal=wal,
            streams=ControllerStreamManager(self._session, self._subscription, options.node_id),
            objects=ControllerObjectManager(
                self._session, self._subscription, prepared_ttl_ms=storage.prepared_ttl_ms
            ),
            settings=storage,
            tasks=self._tasks,
        )
        _report(streams)
        return streams

    async def _serve(
        self,
        streams: StreamClient,
        backlog: AnswerBacklog,
        stop: asyncio.Event,
        ready: Callable[[ServiceAddresses], None],
    ) -> None:
        services = BrokerServices(
            self._runtime,
            self._settings,
            node_id=self._options.node_id,
            kafka_configs=static_values(
                self._settings, self._options.node_id, host=self._host, port=self._frontend.port
            ),
            own_configs=_own_configs(self._settings, self._options),
            session=self._session,
            subscription=self._subscription,
            quorum=QuorumClient(self._runtime.network, self._runtime.clock, self._controllers),
            streams=streams,
            backlog=backlog,
            tasks=self._tasks,
        )
        try:
            await self._open_partitions(services)
            await self._frontend.serve(services.dispatcher)
            ready({"kafka": f"{self._host}:{self._frontend.port}"})
            LOG.info(
                "serving Kafka clients on %s:%d as node %d",
                self._host,
                self._frontend.port,
                self._options.node_id,
            )
            await stop.wait()
        finally:
            await self._frontend.close()
            await self._close_services(services)
            if not await streams.close(upload_timeout_ms=self._settings.shutdown_upload_ms_max):
                LOG.warning(
                    "not all was uploaded and closed in time; the next start goes on from the write-ahead log"
                )

    async def _close_services(self, services: BrokerServices) -> None:
        """In time: while the object store is down, appends that were taken may wait for room in memory without end."""
        try:
            async with asyncio.timeout(self._settings.shutdown_upload_ms_max / 1000):
                await services.close()
        except TimeoutError:
            LOG.warning("appends still wait for room in memory; they are given up, and were not acknowledged")

    async def _open_partitions(self, services: BrokerServices) -> None:
        clock = self._runtime.clock
        started_ns = clock.monotonic_ns()
        services.start()
        try:
            async with asyncio.timeout(FIRST_OPENS_S_MAX):
                await services.partitions.wait_settled()
        except TimeoutError:
            LOG.warning("some partitions are not open after %g s; serving the others", FIRST_OPENS_S_MAX)
        duration_ms = (clock.monotonic_ns() - started_ns) // 1_000_000
        LOG.info("opened %d partitions in %d ms", len(services.partitions), duration_ms)


def _wal_identity(cluster_id: str, node_id: NodeId) -> bytes:
    """16 bytes that name the owner of a write-ahead log: the log of another node or cluster is refused."""
    return hashlib.blake2b(f"{cluster_id}/{node_id}".encode(), digest_size=16).digest()


def _report(streams: StreamClient) -> None:
    report = streams.recovery
    LOG.info(
        "recovery took %d ms: %d records, %d bytes of %d streams uploaded from the write-ahead log; %d records were uploaded before",
        report.duration_ms,
        report.records,
        report.bytes,
        report.streams,
        report.skipped_committed,
    )


def _own_configs(settings: BrokerSettings, options: BrokerOptions) -> dict[str, str]:
    """What DescribeConfigs tells under `ponor.`: this broker's settings, and where the rest of the cluster is."""
    own = {row.name: str(value) for row, value in describe_values(settings)}
    return {"controllers": ",".join(options.controllers), "object.store": options.object_store, **own}
