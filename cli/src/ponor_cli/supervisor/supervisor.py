"""`ponor up`: starts the processes of a plan, keeps them running, stops them in order.

Invariants:
- One supervisor per data directory (the directory's lock).
- `stop` stops all child processes. They also stop when the supervisor ends in another way, even by SIGKILL
  (`launcher`).
- A child that exits is restarted with backoff and one line on the terminal. Exceptions: `ponor node
  stop`, `--no-restart`, and a broker that drained after a signal from outside.
- `cluster.json` is rewritten after every change, unless the disk is full.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace

from ponor_cli.clients.controllers import announce_stop
from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import ClusterFile
from ponor_cli.local.control import ControlRequest
from ponor_cli.local.directory import ClusterDirectory, write_json_atomically
from ponor_cli.local.quorum_file import QuorumFile
from ponor_cli.supervisor.launcher import Child, Launcher
from ponor_cli.supervisor.membership import ControllerChanges, check_owns_nothing, has_drained
from ponor_cli.supervisor.plan import (
    START_ORDER,
    ClusterConfiguration,
    ProcessSpec,
    bootstrap_of,
    check_addition,
    plan_addition,
)
from ponor_cli.supervisor.port_plan import choose_ports, ports_of_process
from ponor_cli.supervisor.process_report import how_it_ended, say

STOP_ONE_GRACE_S = 30.0
DRAIN_S_MAX = 600.0
"""Enough for a drain of thousands of partitions with a slow object store."""
STOP_GRACE_S = {"broker": 3.5, "gc": 1.0, "compactor": 1.0, "controller": 1.0}
"""Time between SIGTERM and SIGKILL. `stop` takes at most 6.5 s: ANNOUNCE_S_MAX, then 3.5 s for brokers and
compactors together, 1 s for garbage collectors and 1 s for controllers. Records that a broker cannot upload
in time remain in its WAL.
"""
BACKGROUND_PATIENCE_S = 30.0
"""Maximum time that a start waits for a garbage collector or a compactor."""
WITHOUT = {"gc": "nothing deletes objects", "compactor": "nothing compacts objects"}
"""Consequence of removing the last node of a role. The last broker and the last controller are not removed.
"""
ANNOUNCED_MS = 60_000
ANNOUNCE_S_MAX = 1.0
TAKE_BACK_S_MAX = 5.0
BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 5.0
BACKOFF_RESET_S = 30.0


class Supervisor:
    """Runs one cluster until `stop` is called."""

    def __init__(
        self,
        directory: ClusterDirectory,
        cluster: ClusterFile,
        specs: list[ProcessSpec],
        *,
        places: ClusterConfiguration,
        quorum: QuorumFile,
        restart: bool,
        environment: Mapping[str, str],
    ) -> None:
        self._directory = directory
        self._cluster = cluster
        self._restart = restart
        self._places = places
        self._changes = ControllerChanges(directory, cluster, quorum)
        self._stopping = False
        self._published = True
        self._launcher = Launcher(directory, environment, self._publish)
        self._children = [Child(spec, cluster.process(spec.role, spec.number)) for spec in specs]
        self._by_key: dict[tuple[str, int], Child] = {(c.spec.role, c.spec.number): c for c in self._children}

    async def start(self) -> None:
        """Start all processes, role by role: a role starts when the processes of the previous role serve.
        Then withdraw the stop announcement that the last `stop` made to the controllers.

        Raises:
            CommandError: a process did not start. The caller stops the others.
        """
        for role in START_ORDER:
            group = [child for child in self._children if child.spec.role == role]
            for child in group:
                write_json_atomically(self._directory.config_file(child.spec.name), child.spec.config)
                await self._spawn(child)
            for child in group:
                # Clients need controllers and brokers. The start does not wait for the other roles,
                # which cannot serve while the object store does not answer.
                patience_s = BACKGROUND_PATIENCE_S if role in WITHOUT else math.inf
                await self._launcher.await_first_ready(child, patience_s=patience_s)
        # While a stop is announced, the controllers do not fail over any broker. Cluster time does not
        # advance while the cluster is stopped, so without this call the last announcement would stay valid
        # for up to a minute.
        await announce_stop(self._cluster.controllers, ttl_ms=0, timeout_s=TAKE_BACK_S_MAX)

    async def stop(self) -> None:
        """Stop all processes within about 6.5 s (STOP_GRACE_S): brokers first, controllers last."""
        self._stopping = True
        if any(child.spec.role == "broker" and child.runs for child in self._children):
            await announce_stop(self._cluster.controllers, ttl_ms=ANNOUNCED_MS, timeout_s=ANNOUNCE_S_MAX)
        for roles in (("broker", "compactor"), ("gc",), ("controller",)):
            group = [child for child in self._children if child.spec.role in roles]
            await asyncio.gather(
                *(self._launcher.terminate(child, STOP_GRACE_S[child.spec.role]) for child in group)
            )
        for child in self._children:
            if child.watcher is not None:
                child.watcher.cancel()
                await asyncio.gather(child.watcher, return_exceptions=True)
        self._launcher.close()
        self._cluster.supervisor_pid = None
        self._publish()

    async def control(self, request: ControlRequest) -> str:
        """Execute `ponor node VERB ROLE N` and return the message for the user.

        Raises:
            CommandError: the process does not exist, or is in a state that does not allow the verb.
        """
        if request.verb == "add":
            return await self._add(request.role, request.settings)
        self._cluster.process(request.role, request.number)
        child = self._by_key[request.role, request.number]
        match request.verb:
            case "stop":
                return await self._stop_one(child)
            case "kill":
                return self._kill_one(child)
            case "start":
                return await self._start_one(child)
            case "remove":
                return await self._remove(child)
        raise CommandError(f"unknown verb {request.verb}; use add, remove, start, stop or kill")

    async def _stop_one(self, child: Child) -> str:
        if not child.wanted:
            return f"{child.title} is already stopped"
        child.wanted = False
        await self._launcher.terminate(child, DRAIN_S_MAX if self._others_serve(child) else STOP_ONE_GRACE_S)
        self._launcher.set_state(child, "stopped", pid=None)
        return f"{child.title} stopped; `ponor node start {child.title}` starts it again"

    def _kill_one(self, child: Child) -> str:
        if child.process is None or not child.runs:
            raise CommandError(f"{child.title} is not running")
        child.process.kill()
        return f"{child.title} (pid {child.process.pid}) killed"

    async def _start_one(self, child: Child) -> str:
        if child.runs:
            return f"{child.title} already runs (pid {child.entry.pid})"
        child.wanted = True
        await self._cancel_watcher(child)
        await self._spawn(child)
        await self._launcher.await_first_ready(child)
        return f"{child.title} started (pid {child.entry.pid})"

    async def _add(self, role: str, settings: dict[str, str]) -> str:
        """Add a node. A node that does not start, or that the quorum refuses, is removed again."""
        numbers = {child.spec.number for child in self._children if child.spec.role == role}
        check_addition(role, len(numbers))
        number = self._number_for(role, numbers)
        planned = ports_of_process(self._places.kafka_port, role, number)
        ports = choose_ports(self._places.host, planned, say)
        spec = plan_addition(self._places, role, number, ports, settings)
        child = Child(spec, self._cluster.add(self._directory, spec.role, spec.number, spec.node_id))
        self._children.append(child)
        self._by_key[role, number] = child
        write_json_atomically(self._directory.config_file(spec.name), spec.config)
        try:
            await self._spawn(child)
            await self._launcher.await_first_ready(child)
            if role == "controller":
                await self._changes.join_quorum(number, spec.node_id, self._reached(child))
                self._controllers_changed()
        except CommandError:
            await self._forget(child)
            raise
        self._brokers_changed()
        say(f"ponor: {child.title} added")
        more = len(numbers) + 1
        learner = f" as a learner; `ponor cluster quorum promote {spec.node_id}` makes it a voter" * (
            role == "controller"
        )
        return (
            f"{child.title} added (pid {child.entry.pid}, node {spec.node_id}){learner}; "
            f"start the cluster with `ponor up --{role}s {more}` next time"
        )

    def _reached(self, child: Child) -> dict[str, str]:
        """Return the advertised addresses of a controller."""
        addresses = dict(child.entry.addresses)
        return addresses | {role: self._places.reached(addresses[role]) for role in ("peer", "session")}

    def _number_for(self, role: str, taken: set[int]) -> int:
        if role == "controller":
            return self._changes.take_number()
        return next(each for each in range(len(taken) + 1) if each not in taken)

    def _controllers_changed(self) -> None:
        """Write the controllers to the configuration files. Running processes follow the metadata instead."""
        self._places = replace(self._places, controllers=list(self._cluster.controllers))
        for child in self._children:
            if "controllers" in child.spec.config:
                child.spec.config["controllers"] = self._places.controllers
                write_json_atomically(self._directory.config_file(child.spec.name), child.spec.config)

    def _brokers_changed(self) -> None:
        specs = [child.spec for child in self._children]
        self._cluster.bootstrap = bootstrap_of(sorted(specs, key=lambda spec: spec.number))
        self._publish()

    def _others_serve(self, child: Child) -> bool:
        """Return whether this is a broker and another broker can take its partitions."""
        return child.spec.role == "broker" and any(
            other.spec.role == "broker" and other is not child and other.entry.state == "serving"
            for other in self._children
        )

    async def _drain(self, child: Child) -> None:
        """Drain a broker and stop it.

        Raises:
            CommandError: no other broker serves, the drain takes too long, or the broker still owns
                something.
        """
        if not self._others_serve(child):
            raise CommandError(
                f"{child.title} cannot be removed: no other broker can take its"
                " partitions; `ponor node add broker` adds one"
            )
        child.wanted = False
        if not await self._launcher.stop(child, DRAIN_S_MAX):
            raise CommandError(
                f"{child.title} has not drained within {DRAIN_S_MAX:.0f} s; the drain continues,"
                " repeat the command to wait for it"
            )
        self._launcher.set_state(child, "stopped", pid=None)
        await check_owns_nothing(self._cluster, child.spec.number, child.spec.node_id)

    async def _remove(self, child: Child) -> str:
        role = child.spec.role
        if role == "broker":
            await self._drain(child)
        if role == "controller":
            address = self._places.reached(child.spec.config["listen"])
            await self._changes.leave_quorum(child.spec.number, child.spec.node_id, address)
            self._controllers_changed()
        child.wanted = False
        await self._launcher.terminate(child, STOP_ONE_GRACE_S)
        await self._forget(child)
        self._brokers_changed()
        say(f"ponor: {child.title} removed")
        left = sum(other.spec.role == role for other in self._children)
        said = f"{child.title} removed; {left} {role}{'' if left == 1 else 's'} left"
        if not left:
            said += f": {WITHOUT[role]} until `ponor node add {role}`"
        if role != "controller":
            # The controllers refuse to unregister a node before its session timeout has passed. That is too
            # long to wait here.
            said += f". `ponor cluster info` shows it until `ponor cluster unregister {child.spec.node_id}`"
        return said

    async def _forget(self, child: Child) -> None:
        """Stop a process and remove it from every list and file except its log."""
        child.wanted = False
        await self._cancel_watcher(child)
        await self._launcher.terminate(child, STOP_ONE_GRACE_S)
        self._children.remove(child)
        del self._by_key[child.spec.role, child.spec.number]
        self._cluster.processes.remove(child.entry)
        self._publish()
        for path in (
            self._directory.config_file(child.spec.name),
            self._directory.ready_file(child.spec.name),
        ):
            path.unlink(missing_ok=True)

    async def _spawn(self, child: Child) -> None:
        """Launch a process and watch it."""
        await self._launcher.launch(child)
        child.watcher = asyncio.create_task(self._watch(child), name=f"watch {child.spec.name}")

    async def _watch(self, child: Child) -> None:
        """Restart a process whenever it exits, until it is not wanted."""
        loop = asyncio.get_running_loop()
        backoff_s = BACKOFF_FIRST_S
        while True:
            assert child.process is not None
            started = loop.time()
            ready = asyncio.create_task(self._launcher.adopt_ready_file(child))
            code = await child.process.wait()
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            if self._stopping or not child.wanted:
                return
            if (
                code == 0
                and self._others_serve(child)
                and await has_drained(self._cluster, child.spec.node_id)
            ):
                child.wanted = False
                self._launcher.set_state(child, "stopped", pid=None)
                say(
                    f"ponor: {child.title} drained and left; `ponor node start {child.title}` starts it again"
                )
                return
            if not self._restart:
                self._launcher.set_state(child, "dead", pid=None)
                say(f"ponor: {child.title} {how_it_ended(code)}; not restarted (--no-restart)")
                return
            if loop.time() - started > BACKOFF_RESET_S:
                backoff_s = BACKOFF_FIRST_S
            self._launcher.set_state(child, "waiting", pid=None)
            log = self._directory.log_file(child.spec.name)
            say(
                f"ponor: {child.title} {how_it_ended(code)}; restart {child.entry.restarts + 1} in"
                f" {backoff_s:.1f} s (see {log})"
            )
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
            child.entry.restarts += 1
            await self._relaunch(child)

    async def _relaunch(self, child: Child) -> None:
        """Launch a process again, and retry forever: a full disk or process table is not permanent."""
        while child.wanted and not self._stopping:
            try:
                await self._launcher.launch(child)
            except OSError as error:
                say(
                    f"ponor: {child.title} cannot be started ({error}); next attempt in {BACKOFF_MAX_S:.0f} s"
                )
                await asyncio.sleep(BACKOFF_MAX_S)
            else:
                return

    async def _cancel_watcher(self, child: Child) -> None:
        if child.watcher is not None:
            child.watcher.cancel()
            await asyncio.gather(child.watcher, return_exceptions=True)

    def _publish(self) -> None:
        """Write `cluster.json`. On a full disk the supervisor continues with the old file until the
        next change.
        """
        try:
            self._cluster.write(self._directory)
        except OSError as error:
            if self._published:
                say(f"ponor: {error}; commands with --data see the old state until the disk has space")
            self._published = False
        else:
            self._published = True


def install_stop_signals(callback: Callable[[], None]) -> None:
    """Call `callback` on SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, callback)
