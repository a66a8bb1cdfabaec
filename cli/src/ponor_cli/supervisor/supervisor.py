"""`ponor up`: starts the processes of a plan, keeps them running, stops them in order.

Invariants:
- One supervisor per data directory (the directory's lock).
- Children outlive neither a stop nor the supervisor's death (`launcher`).
- A child that dies is restarted with backoff and one loud line, unless it was stopped by `ponor node stop` or with --no-restart, or is a broker
  that was told to stop by somebody else, gave its partitions to others and ended in order.
- `cluster.json` tells the truth after every change.
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
from ponor_cli.supervisor.membership import ControllerChanges, check_holds_nothing, has_left
from ponor_cli.supervisor.plan import (
    START_ORDER,
    ClusterPlaces,
    ProcessSpec,
    bootstrap_of,
    check_addition,
    plan_addition,
)
from ponor_cli.supervisor.port_plan import choose_ports, ports_of_process
from ponor_cli.supervisor.process_report import how_it_ended, say

STOP_ONE_GRACE_S = 30.0
DRAIN_S_MAX = 600.0
"""A broker beside others gives its partitions away before it ends; some thousands of them at a slow store take their time."""
STOP_GRACE_S = {"broker": 3.5, "gc": 1.0, "compactor": 1.0, "controller": 1.0}
"""Together below the 5 s in which `ponor up` promises to be gone; what a broker cannot upload in its share stays in its WAL."""
BACKGROUND_PATIENCE_S = 30.0
"""How long a start waits for a collector or a compactor that runs and does not serve yet."""
WITHOUT = {"gc": "nothing deletes objects", "compactor": "nothing compacts objects"}
"""What a cluster without nodes of a role lacks; the last broker or controller is not removed."""
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
        places: ClusterPlaces,
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
        """Start every process in order, each role after the one before serves; a stop that was announced is over. Collectors and compactors may come later.

        Raises:
            CommandError: one did not come up; everything started is stopped again.
        """
        for role in START_ORDER:
            group = [child for child in self._children if child.spec.role == role]
            for child in group:
                write_json_atomically(self._directory.config_file(child.spec.name), child.spec.config)
                await self._spawn(child)
            for child in group:
                # Clients need controllers and brokers. The others cannot serve while the object store does not answer.
                patience_s = BACKGROUND_PATIENCE_S if role in WITHOUT else math.inf
                await self._launcher.await_first_ready(child, patience_s=patience_s)
        # The time of the cluster stands still while it is stopped: without this, nobody would fail over in its first minute.
        await announce_stop(self._cluster.controllers, ttl_ms=0, timeout_s=TAKE_BACK_S_MAX)

    async def stop(self) -> None:
        """Stop everything, brokers first, in under 5 seconds; nothing is left behind."""
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
        """Carry out `ponor node VERB ROLE N`.

        Raises:
            CommandError: unknown process, or it is not in the state the verb needs.
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
            return f"{child.title} is stopped already"
        child.wanted = False
        await self._launcher.terminate(child, DRAIN_S_MAX if self._others_serve(child) else STOP_ONE_GRACE_S)
        self._launcher.set_state(child, "stopped", pid=None)
        return f"{child.title} stopped; `ponor node start {child.title}` brings it back"

    def _kill_one(self, child: Child) -> str:
        if child.process is None or not child.runs:
            raise CommandError(f"{child.title} is not running")
        child.process.kill()
        return f"{child.title} (pid {child.process.pid}) killed"

    async def _start_one(self, child: Child) -> str:
        if child.runs:
            return f"{child.title} runs already (pid {child.entry.pid})"
        child.wanted = True
        await self._cancel_watcher(child)
        await self._spawn(child)
        await self._launcher.await_first_ready(child)
        return f"{child.title} started (pid {child.entry.pid})"

    async def _add(self, role: str, settings: dict[str, str]) -> str:
        """One more node; one that does not come up, or is not let in, is taken out again."""
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
                await self._changes.let_in(number, spec.node_id, self._reached(child))
                self._controllers_changed()
        except CommandError:
            await self._forget(child)
            raise
        self._brokers_changed()
        say(f"ponor: {child.title} added")
        more = len(numbers) + 1
        learner = f" as a learner; `ponor cluster quorum promote {spec.node_id}` lets it vote" * (
            role == "controller"
        )
        return (
            f"{child.title} added (pid {child.entry.pid}, node {spec.node_id}){learner}; "
            f"for the next start say `ponor up --{role}s {more}`"
        )

    def _reached(self, child: Child) -> dict[str, str]:
        """Addresses of a controller, as others reach it."""
        addresses = dict(child.entry.addresses)
        return addresses | {role: self._places.reached(addresses[role]) for role in ("peer", "session")}

    def _number_for(self, role: str, taken: set[int]) -> int:
        if role == "controller":
            return self._changes.take_number()
        return next(each for each in range(len(taken) + 1) if each not in taken)

    def _controllers_changed(self) -> None:
        """Processes that run find the new controllers by the metadata; those that start again read them here."""
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
        """Whether this is a broker, and another one is there to take its partitions."""
        return child.spec.role == "broker" and any(
            other.spec.role == "broker" and other is not child and other.entry.state == "serving"
            for other in self._children
        )

    async def _drain(self, child: Child) -> None:
        """Have a broker give everything away and end.

        Raises:
            CommandError: nobody is there to take it, it takes too long, or it ended without having given everything away.
        """
        if not self._others_serve(child):
            raise CommandError(
                f"{child.title} cannot be removed: no other broker serves, who could take its partitions; `ponor node add broker` starts one"
            )
        child.wanted = False
        if not await self._launcher.stop(child, DRAIN_S_MAX):
            raise CommandError(
                f"{child.title} has not given everything away within {DRAIN_S_MAX:.0f} s; it goes on, the same command waits again"
            )
        self._launcher.set_state(child, "stopped", pid=None)
        await check_holds_nothing(self._cluster, child.spec.number, child.spec.node_id)

    async def _remove(self, child: Child) -> str:
        role = child.spec.role
        if role == "broker":
            await self._drain(child)
        if role == "controller":
            address = self._places.reached(child.spec.config["listen"])
            await self._changes.let_go(child.spec.number, child.spec.node_id, address)
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
            # The controllers forget a node only after a session timeout, which is too long to wait here.
            said += f". `ponor cluster info` shows it until `ponor cluster unregister {child.spec.node_id}`"
        return said

    async def _forget(self, child: Child) -> None:
        """Stop following a process and take it out of every list and file but its log."""
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
        """Launch a process and follow it from now on."""
        await self._launcher.launch(child)
        child.watcher = asyncio.create_task(self._watch(child), name=f"watch {child.spec.name}")

    async def _watch(self, child: Child) -> None:
        """Follow one process through its lives."""
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
            if code == 0 and self._others_serve(child) and await has_left(self._cluster, child.spec.node_id):
                child.wanted = False
                self._launcher.set_state(child, "stopped", pid=None)
                say(f"ponor: {child.title} has left; `ponor node start {child.title}` brings it back")
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
                f"ponor: {child.title} {how_it_ended(code)}; restart {child.entry.restarts + 1} in {backoff_s:.1f} s (see {log})"
            )
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
            child.entry.restarts += 1
            await self._relaunch(child)

    async def _relaunch(self, child: Child) -> None:
        """Launch a process again, unless it was stopped meanwhile, and however often it takes: a full disk or a machine out of processes must not leave it dead for good."""
        while child.wanted and not self._stopping:
            try:
                await self._launcher.launch(child)
            except OSError as error:
                say(f"ponor: {child.title} cannot be started ({error}); again in {BACKOFF_MAX_S:.0f} s")
                await asyncio.sleep(BACKOFF_MAX_S)
            else:
                return

    async def _cancel_watcher(self, child: Child) -> None:
        if child.watcher is not None:
            child.watcher.cancel()
            await asyncio.gather(child.watcher, return_exceptions=True)

    def _publish(self) -> None:
        """Write `cluster.json`. A disk that is full must not stop who looks after the processes: the file is then what it was until the next change."""
        try:
            self._cluster.write(self._directory)
        except OSError as error:
            if self._published:
                say(f"ponor: {error}; commands with --data see what it was until there is room")
            self._published = False
        else:
            self._published = True


def install_stop_signals(callback: Callable[[], None]) -> None:
    """SIGINT and SIGTERM ask for a clean stop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, callback)
