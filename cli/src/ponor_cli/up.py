"""`ponor up`: a whole cluster on this machine, as separate processes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

from ponor_cli.cluster_file import HAS_SERVED_DEFAULT, ClusterFile, ProcessEntry
from ponor_cli.control import ControlServer
from ponor_cli.directory import read_json, write_json_atomically
from ponor_cli.errors import CommandError
from ponor_cli.orphans import await_orphans
from ponor_cli.plan import (
    ProcessSpec,
    UpOptions,
    bootstrap_of,
    broker_numbers,
    check_options,
    cluster_places,
    export_environment,
    object_store_url,
    plan,
)
from ponor_cli.port_plan import choose_ports, ports_of_cluster
from ponor_cli.ports import is_listenable
from ponor_cli.process_words import say
from ponor_cli.quorum_file import QuorumFile
from ponor_cli.store_glance import silence_of
from ponor_cli.supervisor import Supervisor, install_stop_signals

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1", "[::1]")


def run_up(options: UpOptions, *, restart: bool, ready_file: Path | None) -> None:
    """Run a cluster until SIGINT or SIGTERM.

    Raises:
        CommandError: an option, a port, the directory or a process stands in the way.
    """
    check_options(options)
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)
    made = options.directory.make()
    with options.directory.lock():
        try:
            cluster, quorum, specs = _prepare(options)
        except CommandError:
            options.directory.unmake(made)
            raise
        if options.host not in LOOPBACK:
            say(
                f"ponor: listening on {options.host}: there is no TLS and no authentication, so whoever reaches these ports can read and change everything"
            )
        asyncio.run(_serve(options, cluster, quorum, specs, restart=restart, ready_file=ready_file))


def _prepare(options: UpOptions) -> tuple[ClusterFile, QuorumFile, list[ProcessSpec]]:
    """What is to run, written down; nothing was started.

    Raises:
        CommandError: something stands in the way.
    """
    directory, store = options.directory, object_store_url(options)
    before = read_json(directory.cluster_file)
    # Where no broker ever let a client in, nothing was stored: the next start may have another store and fewer brokers.
    bound = before if before is not None and before.get("has_served", HAS_SERVED_DEFAULT) else {}
    _refuse_other_store(options, store, bound)
    brokers = broker_numbers(options.brokers, _brokers_of(bound))
    if before is not None:
        _await_those_left_behind(ClusterFile.parse(before))
    _refuse_taken_kafka_ports(options, brokers)
    quorum = QuorumFile.open(directory, options.controllers, options.cluster_ordinal)
    controllers = [place.number for place in quorum.controllers]
    planned = ports_of_cluster(options.kafka_port, controllers, brokers, options.gcs, options.compactors)
    specs = plan(options, quorum, choose_ports(options.host, planned, say), brokers)
    cluster = _describe(options, specs, store, has_served=bool(bound))
    cluster.write(directory)
    return cluster, quorum, specs


async def _serve(
    options: UpOptions,
    cluster: ClusterFile,
    quorum: QuorumFile,
    specs: list[ProcessSpec],
    *,
    restart: bool,
    ready_file: Path | None,
) -> None:
    stop = asyncio.Event()
    install_stop_signals(stop.set)
    supervisor = Supervisor(
        options.directory,
        cluster,
        specs,
        places=cluster_places(options, quorum, list(cluster.controllers)),
        quorum=quorum,
        restart=restart,
        environment=export_environment(options),
    )
    control = ControlServer(options.directory, supervisor.control)
    await control.start()
    glance: asyncio.Task[None] | None = None
    starting = asyncio.create_task(supervisor.start())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            if not quorum.formatted:
                quorum.formatted = True
                quorum.write(options.directory)
            say(f"ready bootstrap={cluster.bootstrap}")
            glance = asyncio.create_task(_glance(cluster.object_store, options.wal))
            if ready_file is not None:
                write_json_atomically(ready_file, {"bootstrap": cluster.bootstrap, "pid": os.getpid()})
            await stopping
    finally:
        waiting = [task for task in (starting, stopping, glance) if task is not None]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await control.close()
        await supervisor.stop()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
        say("ponor: stopped")


async def _glance(store: str, wal: str) -> None:
    silence = await silence_of(store, wal, os.environ)
    if silence is not None:
        say(f"ponor: {silence}")


def _describe(options: UpOptions, specs: list[ProcessSpec], store: str, *, has_served: bool) -> ClusterFile:
    entries = [
        ProcessEntry.planned(options.directory, spec.role, spec.number, spec.node_id) for spec in specs
    ]
    return ClusterFile(
        bootstrap=bootstrap_of(specs),
        controllers=list(next(spec.config["controllers"] for spec in specs if spec.role == "broker")),
        object_store=store,
        wal=options.wal,
        supervisor_pid=os.getpid(),
        processes=entries,
        has_served=has_served,
    )


def _brokers_of(before: dict[str, Any]) -> list[int]:
    """Numbers of the brokers that the cluster had when it was stopped."""
    return [entry["id"] for entry in before.get("processes", []) if entry["role"] == "broker"]


def _refuse_other_store(options: UpOptions, store: str, before: dict[str, Any]) -> None:
    """Data written to one store is not found in another; a cluster stays with the store it began with."""
    root = options.directory.root
    if before.get("object_store") not in (None, store):
        raise CommandError(
            f"{root} belongs to the object store {before['object_store']}, not {store}; "
            "give that one with --object-store, or another --data"
        )


def _await_those_left_behind(before: ClusterFile) -> None:
    """A `ponor up` that was killed could not stop its processes; they end by themselves, a moment later than it did."""
    for entry in await_orphans(before.processes):
        say(f"ponor: {entry.name} (pid {entry.pid}) of the `ponor up` before this one still runs")


def _refuse_taken_kafka_ports(options: UpOptions, brokers: list[int]) -> None:
    for number in brokers:
        port = options.kafka_port + number
        if not is_listenable(options.host, port):
            raise CommandError(
                f"port {port} on {options.host} cannot be used: another process listens on it, or {options.host} is no address of this machine; "
                "choose others with --kafka-port and --host"
            )
