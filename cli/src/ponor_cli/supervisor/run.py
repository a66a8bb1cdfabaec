"""Run a local cluster in the foreground: prepare its files, start its processes, wait for a signal,
stop them.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Final

from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import HAS_SERVED_DEFAULT, ClusterFile, ProcessEntry
from ponor_cli.local.control import ControlServer
from ponor_cli.local.directory import read_json, write_json_atomically
from ponor_cli.local.quorum_file import QuorumFile
from ponor_cli.supervisor.plan import ProcessSpec, bootstrap_of, broker_numbers, cluster_configuration, plan
from ponor_cli.supervisor.port_plan import choose_ports, ports_of_cluster
from ponor_cli.supervisor.process_report import say
from ponor_cli.supervisor.start_checks import (
    await_orphans,
    find_store_problem,
    refuse_other_store,
    refuse_taken_kafka_ports,
)
from ponor_cli.supervisor.supervisor import Supervisor, install_stop_signals
from ponor_cli.supervisor.up_options import UpOptions, check_options, export_environment, object_store_url

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1", "[::1]")


def run_up(options: UpOptions, *, restart: bool, ready_file: Path | None) -> None:
    """Run a cluster until SIGINT or SIGTERM.

    `restart` tells whether failed processes are started again. `ready_file` is written when clients
    can produce, and removed at the stop.

    Raises:
        CommandError: an option, a port, the directory or a process prevents the start.
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
                f"ponor: listening on {options.host} without TLS and authentication: everyone who can"
                " connect can read and change everything"
            )
        asyncio.run(_serve(options, cluster, quorum, specs, restart=restart, ready_file=ready_file))


def _prepare(options: UpOptions) -> tuple[ClusterFile, QuorumFile, list[ProcessSpec]]:
    """Plan the processes and write `cluster.json` and `quorum.json`. Starts nothing.

    Raises:
        CommandError: the cluster cannot start with these options.
    """
    directory, store = options.directory, object_store_url(options)
    before = read_json(directory.cluster_file)
    # A cluster whose brokers have never served clients holds no data, so it may start with
    # another store and fewer brokers.
    bound = before if before is not None and before.get("has_served", HAS_SERVED_DEFAULT) else {}
    refuse_other_store(options, store, bound)
    brokers = broker_numbers(options.brokers, _brokers_of(bound))
    if before is not None:
        for entry in await_orphans(ClusterFile.parse(before).processes):
            say(f"ponor: {entry.name} (pid {entry.pid}) of the last `ponor up` is still running")
    refuse_taken_kafka_ports(options, brokers)
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
        places=cluster_configuration(options, quorum, list(cluster.controllers)),
        quorum=quorum,
        restart=restart,
        environment=export_environment(options),
    )
    control = ControlServer(options.directory, supervisor.control)
    await control.start()
    store_check: asyncio.Task[None] | None = None
    starting = asyncio.create_task(supervisor.start())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _note_start(options, quorum)
            say(f"ready bootstrap={cluster.bootstrap}")
            store_check = asyncio.create_task(_check_store(cluster.object_store, options.wal))
            if ready_file is not None:
                write_json_atomically(ready_file, {"bootstrap": cluster.bootstrap, "pid": os.getpid()})
            await stopping
    finally:
        waiting = [task for task in (starting, stopping, store_check) if task is not None]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await control.close()
        await supervisor.stop()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
        say("ponor: stopped")


def _note_start(options: UpOptions, quorum: QuorumFile) -> None:
    # A controller directory that is empty from now on has lost its data; it is not formatted again.
    if not quorum.formatted:
        quorum.formatted = True
        quorum.write(options.directory)


async def _check_store(store: str, wal: str) -> None:
    problem = await find_store_problem(store, wal, os.environ)
    if problem is not None:
        say(f"ponor: {problem}")


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
    """Return the numbers of the brokers in the last `cluster.json`."""
    return [entry["id"] for entry in before.get("processes", []) if entry["role"] == "broker"]
