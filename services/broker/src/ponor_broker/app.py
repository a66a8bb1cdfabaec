"""Composition root of the broker: builds all parts, serves until the stop, closes them in reverse order.

Start: bind the Kafka port (its number is part of the registration), register the node, open the
write-ahead log and recover earlier ones, open the partitions, accept clients. Stop: move partitions
away if another broker can take them (`drain`), disconnect clients, upload and close everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ponor_metadata.client.errors import SessionClosedError
from ponor_metadata.client.joining import Joined, check_later, join
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_metadata.client.seen_history import Witness
from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.disk import DiskLock
from ponor_runtime.host_port import join_host_port
from ponor_runtime.object_store import ObjectStore
from ponor_runtime.ready_file import ServiceAddresses
from ponor_runtime.runtime import Runtime
from ponor_runtime.settings import describe_values
from ponor_runtime.tasks import BackgroundTasks
from s3stream.client import StreamClient
from s3stream.stores.probe.start_check import Condition

from ponor_broker.configs.static_values import static_values
from ponor_broker.drain import Drain
from ponor_broker.listener.kafka_listener import BindFrontend, Frontend, bind_listener
from ponor_broker.node import Node, first_of
from ponor_broker.options import BrokerOptions
from ponor_broker.peers.tcp_connection import ConnectPeer, connect_tcp
from ponor_broker.requests.request_flow import AnswerBacklog
from ponor_broker.services import BrokerServices
from ponor_broker.settings import BrokerSettings
from ponor_broker.storage.recoverer import Recoverer
from ponor_broker.storage.start import WAL_DIRECTORY, StoragePorts, start_on_file, start_on_store

__all__ = ["BindFrontend", "BrokerOptions", "DirectoryInUseError", "Frontend", "bind_listener", "run"]

LOG: Final = logging.getLogger("ponor.broker")
MARKER_COPY: Final = "marker"
FIRST_OPENS_S_MAX: Final = 30.0
"""After this time, clients are accepted even if some partitions are not open, because the others can be
used."""


class DirectoryInUseError(Exception):
    """Another broker has locked the data directory; the message gives the remedy."""


async def run(
    runtime: Runtime,
    settings: BrokerSettings,
    options: BrokerOptions,
    *,
    store: ObjectStore,
    stop: asyncio.Event,
    ready: Callable[[ServiceAddresses], None],
    bind: BindFrontend = bind_listener,
    connect_peer: ConnectPeer = connect_tcp,
    condition: Condition = Condition.UNPROVEN,
) -> None:
    """Serve until `stop` is set. The caller closes the store.

    Args:
        runtime: ports to the outside world.
        settings: bounds and times.
        options: identity of this broker.
        store: the object store, also for write-ahead logs of `WalKind.OBJECT`.
        stop: requests the stop.
        ready: called with the addresses when clients are accepted.
        bind: creates the frontend.
        connect_peer: opens connections to the Kafka listeners of other brokers.
        condition: the result of the check of the store's create-only put. If it is UNPROVEN, a broker with a
            log in the store checks its epoch at the controllers before every acknowledgement.

    Raises:
        DirectoryInUseError: another process has locked the data directory.
        WrongClusterError: controllers, store and configuration do not belong to one cluster.
        OSError: the Kafka port cannot be bound, or the disk failed.
        WalCorruptError, JournalIdentityError: the write-ahead log cannot be used; the message gives
            the remedy.
    """
    lock = await _lock(runtime, options) if options.wal is WalKind.FILE else None
    backlog = AnswerBacklog(settings.fetch_answers_bytes_max)
    try:
        frontend = await bind(runtime, settings, options, backlog)
        try:
            joined = await join(
                runtime,
                options.controllers,
                options.node_id,
                options.membership,
                store,
                stop,
                copy=options.data / MARKER_COPY if options.wal is WalKind.FILE else None,
            )
            if joined is not None:
                options = replace(options, node_id=joined.node_id)
                broker = _Broker(runtime, settings, options, joined, store, frontend, connect_peer, condition)
                await broker.run(backlog, stop, ready)
        finally:
            await frontend.close()
    finally:
        if lock is not None:
            lock.release()


async def _lock(runtime: Runtime, options: BrokerOptions) -> DiskLock:
    await runtime.disk.make_directories(options.data)
    try:
        return runtime.disk.lock(options.data)
    except BlockingIOError as error:
        raise DirectoryInUseError(
            f"{options.data} is in use by another broker; stop it, or configure another directory"
        ) from error


class _Broker:
    """One run of a broker whose port is bound already: registration, storage, service, stop."""

    def __init__(
        self,
        runtime: Runtime,
        settings: BrokerSettings,
        options: BrokerOptions,
        joined: Joined,
        store: ObjectStore,
        frontend: Frontend,
        connect_peer: ConnectPeer,
        condition: Condition,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._options = options
        self._store = store
        self._joined = joined
        self._frontend = frontend
        self._connect_peer = connect_peer
        self._condition = condition
        self._tasks = BackgroundTasks(runtime.fail_stop)
        self._node = Node(
            runtime,
            node_id=options.node_id,
            cluster_id=joined.marker.cluster_id,
            seen=joined.seen,
            controllers=options.controllers,
            wal=options.wal,
            kafka_host=options.client_host,
            kafka_port=frontend.port,
            listeners=frontend.addresses,
        )
        self._drain = Drain(self._node, runtime.clock, runtime.process, ms_max=settings.drain_ms_max)

    async def run(
        self, backlog: AnswerBacklog, stop: asyncio.Event, ready: Callable[[ServiceAddresses], None]
    ) -> None:
        """Register, recover, serve until `stop`, close."""
        self._node.start(self._tasks)
        try:
            if await first_of(asyncio.ensure_future(self._node.register()), stop):
                streams = await self._start_storage(stop)
                if streams is not None:
                    await self._serve(streams, backlog, stop, ready)
        finally:
            await self._node.close()
            await self._tasks.close()

    async def _start_storage(self, stop: asyncio.Event) -> StreamClient | None:
        """Start the storage and recover the logs that this node's partitions need; None if the stop was
        requested first.
        """
        settings = self._settings.storage
        ports = StoragePorts.of(self._node, self._store, settings, self._runtime.clock)
        recoverer = Recoverer(
            self._runtime,
            settings,
            self._node,
            ports,
            self._tasks,
            in_flight_max=self._settings.takeovers_in_flight_max,
            bytes_max=self._settings.takeover_bytes_max,
        )
        if self._options.wal is WalKind.FILE:
            if not self._joined.is_checked:
                ports.witness.hold()
                self._tasks.spawn(self._check_store(ports.witness), "store-check")
            directory = self._options.data / WAL_DIRECTORY
            streams = await start_on_file(self._runtime, settings, self._node, ports, directory, self._tasks)
        else:
            # The names of the log's slots contain the node epoch, so no epoch may be assigned twice. The
            # witness record lets a later start detect controllers whose log was restored from an older copy.
            witnessed = ports.witness.write(self._node.session.seen)
            if not await first_of(asyncio.ensure_future(witnessed), stop):
                return None
            streams = await start_on_store(self._runtime, settings, ports, self._condition, self._tasks)
            if not await first_of(asyncio.ensure_future(recoverer.recover_own()), stop):
                await self._close_streams(streams)
                return None
        self._node.subscription.listeners.append(recoverer.image_changed)
        self._node.subscription.image_listeners.append(lambda _: recoverer.image_changed(None))
        self._tasks.spawn(recoverer.run(), "takeovers")
        return streams

    async def _check_store(self, witness: Witness) -> None:
        """Check the store, which was unreachable at the start, and then the controllers' log,
        before anything is uploaded.
        """
        seen = await check_later(self._runtime, self._store, self._joined.marker)
        # The session's own task reports a refusal. At a stop there is nothing to report.
        with suppress(SessionClosedError):
            await self._node.session.register_again(seen)
            witness.permit()

    async def _serve(
        self,
        streams: StreamClient,
        backlog: AnswerBacklog,
        stop: asyncio.Event,
        ready: Callable[[ServiceAddresses], None],
    ) -> None:
        services = self._services(streams, backlog)
        is_drained = False
        try:
            await self._open_partitions(services)
            await self._frontend.serve(services.dispatcher)
            further = {f"kafka.{name}": address for name, address in self._frontend.addresses.items()}
            ready({"kafka": join_host_port(self._options.client_host, self._frontend.port), **further})
            LOG.info(
                "serving Kafka clients on %s:%d as node %d",
                self._options.client_host,
                self._frontend.port,
                self._options.node_id,
            )
            await stop.wait()
            is_drained = await self._drain.run()
        finally:
            await self._frontend.close()
            await self._close_services(services)
            is_closed = await self._close_streams(streams)
        if is_drained and is_closed:
            await self._drain.leave()

    def _services(self, streams: StreamClient, backlog: AnswerBacklog) -> BrokerServices:
        options, node = self._options, self._node
        return BrokerServices(
            self._runtime,
            self._settings,
            node_id=options.node_id,
            kafka_configs=static_values(
                self._settings, options.node_id, host=options.client_host, port=self._frontend.port
            ),
            own_configs=_own_configs(self._settings, options),
            session=node.session,
            subscription=node.subscription,
            quorum=QuorumClient(self._runtime.network, self._runtime.clock, node.controllers),
            streams=streams,
            backlog=backlog,
            connect_peer=self._connect_peer,
            tasks=self._tasks,
        )

    async def _close_streams(self, streams: StreamClient) -> bool:
        """Close within the time limit; return whether all data was uploaded and all streams and the log were
        closed.
        """
        if await streams.close(upload_timeout_ms=self._settings.shutdown_upload_ms_max):
            return True
        successor = "the next start of this node" if self._options.wal is WalKind.FILE else "another broker"
        LOG.warning(
            "some data was not uploaded, or some streams were not closed, in time; %s will recover the"
            " write-ahead log",
            successor,
        )
        return False

    async def _close_services(self, services: BrokerServices) -> None:
        """Close within the time limit: while the object store is down, accepted appends may wait
        for memory indefinitely.
        """
        try:
            async with asyncio.timeout(self._settings.shutdown_upload_ms_max / 1000):
                await services.close()
        except TimeoutError:
            LOG.warning("dropping appends that still wait for memory; they were not acknowledged")

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


def _own_configs(settings: BrokerSettings, options: BrokerOptions) -> dict[str, str]:
    """Return this broker's settings and the addresses of the cluster, for DescribeConfigs under `ponor.`."""
    own = {row.name: str(value) for row, value in describe_values(settings)}
    return {"controllers": ",".join(options.controllers), "object.store": options.object_store, **own}
