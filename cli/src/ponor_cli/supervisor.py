"""`ponor up`: starts the processes of a plan, keeps them running, stops them in order.

Invariants:
- One supervisor per data directory (the directory's lock).
- Children live in their own process groups, so that Ctrl-C reaches the supervisor alone and it decides the order of stopping;
  they hold the read end of a pipe whose write end only the supervisor has: when it dies, however, they see its end and stop.
- A child that dies is restarted with backoff and one loud line, unless it was stopped by `ponor node stop` or with --no-restart.
- `cluster.json` tells the truth after every change.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ponor_cli.cluster_file import ClusterFile, ProcessEntry
from ponor_cli.control import ControlRequest
from ponor_cli.controller_changes import ControllerChanges
from ponor_cli.directory import ClusterDirectory, read_json, write_json_atomically
from ponor_cli.errors import CommandError
from ponor_cli.plan import (
    REFUSED_ROLES,
    START_ORDER,
    ClusterPlaces,
    ProcessSpec,
    check_addition,
    plan_addition,
    ports_of_addition,
)
from ponor_cli.ports import free_ports
from ponor_cli.quorum_file import QuorumFile

PARENT_PIPE_VARIABLE = "PONOR_PARENT_FD"
RESOURCE_VARIABLE = "OTEL_RESOURCE_ATTRIBUTES"
STOP_ONE_GRACE_S = 30.0
STOP_GRACE_S = {"broker": 3.5, "gc": 1.0, "controller": 1.0}
"""Together below the 5 s in which `ponor up` promises to be gone; what a broker cannot upload in its share stays in its WAL."""
START_DEADLINE_S = 600.0
"""A broker that recovers a full write-ahead log to a slow store takes its time."""
BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 5.0
BACKOFF_RESET_S = 30.0
LOG_BYTES_MAX = 64 * 1024 * 1024
POLL_S = 0.02
STARTUP_BYTES_MAX = 16 * 1024


def say(line: str) -> None:
    """One line to the user, at once."""
    print(line, flush=True)


@dataclass(slots=True)
class Child:
    """One supervised process."""

    spec: ProcessSpec
    entry: ProcessEntry
    process: asyncio.subprocess.Process | None = None
    watcher: asyncio.Task[None] | None = None
    wanted: bool = True
    log_position: int = 0


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
        self._environment = environment
        self._stopping = False
        self._parent_read, self._parent_write = os.pipe()
        os.set_inheritable(self._parent_read, True)
        self._children = [Child(spec, cluster.process(spec.role, spec.number)) for spec in specs]
        self._by_key: dict[tuple[str, int], Child] = {(c.spec.role, c.spec.number): c for c in self._children}

    async def start(self) -> None:
        """Start every process in order, each role after the one before serves.

        Raises:
            CommandError: one did not come up; everything started is stopped again.
        """
        for role in START_ORDER:
            group = [child for child in self._children if child.spec.role == role]
            for child in group:
                write_json_atomically(self._directory.config_file(child.spec.name), child.spec.config)
                await self._spawn(child)
            for child in group:
                await self._await_first_ready(child)

    async def stop(self) -> None:
        """Stop everything, brokers first, in under 5 seconds; nothing is left behind."""
        self._stopping = True
        for role in ("broker", "gc", "controller"):
            group = [child for child in self._children if child.spec.role == role]
            await asyncio.gather(*(self._terminate(child, STOP_GRACE_S[role]) for child in group))
        for child in self._children:
            if child.watcher is not None:
                child.watcher.cancel()
                await asyncio.gather(child.watcher, return_exceptions=True)
        os.close(self._parent_write)
        os.close(self._parent_read)
        self._cluster.supervisor_pid = None
        self._cluster.write(self._directory)

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
            return f"{_title(child)} is stopped already"
        child.wanted = False
        await self._terminate(child, STOP_ONE_GRACE_S)
        self._set_state(child, "stopped", pid=None)
        return f"{_title(child)} stopped; `ponor node start {_title(child)}` brings it back"

    def _kill_one(self, child: Child) -> str:
        if child.process is None or child.process.returncode is not None:
            raise CommandError(f"{_title(child)} is not running")
        child.process.kill()
        return f"{_title(child)} (pid {child.process.pid}) killed"

    async def _start_one(self, child: Child) -> str:
        if child.process is not None and child.process.returncode is None:
            return f"{_title(child)} runs already (pid {child.process.pid})"
        child.wanted = True
        await self._cancel_watcher(child)
        await self._spawn(child)
        await self._await_first_ready(child)
        return f"{_title(child)} started (pid {child.entry.pid})"

    async def _add(self, role: str, settings: dict[str, str]) -> str:
        """One more node; one that does not come up, or is not let in, is taken out again."""
        numbers = {child.spec.number for child in self._children if child.spec.role == role}
        check_addition(role, len(numbers))
        number = self._number_for(role, numbers)
        ports = free_ports(self._places.host, ports_of_addition(role))
        spec = plan_addition(self._places, role, number, ports, settings)
        child = Child(spec, self._cluster.add(self._directory, spec.role, spec.number, spec.node_id))
        self._children.append(child)
        self._by_key[role, number] = child
        write_json_atomically(self._directory.config_file(spec.name), spec.config)
        try:
            await self._spawn(child)
            await self._await_first_ready(child)
            if role == "controller":
                await self._changes.let_in(number, spec.node_id, child.entry.addresses)
                self._controllers_changed()
        except CommandError:
            await self._forget(child)
            raise
        say(f"ponor: {_title(child)} added")
        more = len(numbers) + 1
        learner = f" as a learner; `ponor cluster quorum promote {spec.node_id}` lets it vote" * (
            role == "controller"
        )
        return (
            f"{_title(child)} added (pid {child.entry.pid}, node {spec.node_id}){learner}; "
            f"for the next start say `ponor up --{role}s {more}`"
        )

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

    async def _remove(self, child: Child) -> str:
        role = child.spec.role
        if role in REFUSED_ROLES:
            raise CommandError(
                f"{_title(child)} is the cluster's only {role} and cannot be removed; `ponor node stop {_title(child)}` stops it"
            )
        if role == "controller":
            await self._changes.let_go(child.spec.number, child.spec.node_id, child.spec.config["listen"])
            self._controllers_changed()
        child.wanted = False
        await self._terminate(child, STOP_ONE_GRACE_S)
        await self._forget(child)
        say(f"ponor: {_title(child)} removed")
        left = sum(other.spec.role == role for other in self._children)
        return f"{_title(child)} removed; {left} {role} left" + (
            "" if left else ": nothing deletes objects until `ponor node add gc`"
        )

    async def _forget(self, child: Child) -> None:
        """Stop following a process and take it out of every list and file but its log."""
        child.wanted = False
        await self._cancel_watcher(child)
        await self._terminate(child, STOP_ONE_GRACE_S)
        self._children.remove(child)
        del self._by_key[child.spec.role, child.spec.number]
        self._cluster.processes.remove(child.entry)
        self._cluster.write(self._directory)
        for path in (
            self._directory.config_file(child.spec.name),
            self._directory.ready_file(child.spec.name),
        ):
            path.unlink(missing_ok=True)

    async def _spawn(self, child: Child) -> None:
        """Launch a process and follow it from now on."""
        await self._launch(child)
        child.watcher = asyncio.create_task(self._watch(child), name=f"watch {child.spec.name}")

    async def _launch(self, child: Child) -> None:
        name = child.spec.name
        self._directory.ready_file(name).unlink(missing_ok=True)
        log_path = self._directory.log_file(name)
        if log_path.exists() and log_path.stat().st_size > LOG_BYTES_MAX:
            log_path.replace(log_path.with_suffix(".log.1"))
        with log_path.open("ab") as log:
            child.log_position = log.tell()
            child.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"ponor_{child.spec.role}", "--config", str(self._directory.config_file(name)),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                pass_fds=(self._parent_read,), env=self._environment_of(name),
            )  # fmt: skip
        self._set_state(child, "starting", pid=child.process.pid)

    def _environment_of(self, name: str) -> dict[str, str]:
        """Ours, and what tells this process from its siblings where its traces and metrics arrive."""
        environment = {**os.environ, **self._environment}
        attributes = [environment.get(RESOURCE_VARIABLE, ""), f"service.instance.id={name}"]
        environment[RESOURCE_VARIABLE] = ",".join(filter(None, attributes))
        environment[PARENT_PIPE_VARIABLE] = str(self._parent_read)
        return environment

    async def _watch(self, child: Child) -> None:
        """Follow one process through its lives."""
        loop = asyncio.get_running_loop()
        backoff_s = BACKOFF_FIRST_S
        while True:
            assert child.process is not None
            started = loop.time()
            ready = asyncio.create_task(self._adopt_ready_file(child))
            code = await child.process.wait()
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
            if self._stopping or not child.wanted:
                return
            if not self._restart:
                self._set_state(child, "dead", pid=None)
                say(f"ponor: {_title(child)} {_how_it_ended(code)}; not restarted (--no-restart)")
                return
            if loop.time() - started > BACKOFF_RESET_S:
                backoff_s = BACKOFF_FIRST_S
            self._set_state(child, "waiting", pid=None)
            log = self._directory.log_file(child.spec.name)
            say(
                f"ponor: {_title(child)} {_how_it_ended(code)}; restart {child.entry.restarts + 1} in {backoff_s:.1f} s (see {log})"
            )
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
            child.entry.restarts += 1
            await self._launch(child)

    async def _adopt_ready_file(self, child: Child) -> None:
        """Wait for the process to say that it serves, then publish its addresses."""
        content = await self._wait_ready_file(child)
        child.entry.addresses = {str(key): str(value) for key, value in content.get("addresses", {}).items()}
        metrics = child.entry.addresses.get("metrics")
        child.entry.metrics_url = f"http://{metrics}/metrics" if metrics else None
        self._set_state(child, "serving", pid=child.entry.pid)
        for line in _startup_lines(self._directory.log_file(child.spec.name), child.log_position):
            say(f"ponor: {_title(child)}: {line}")

    async def _wait_ready_file(self, child: Child) -> dict[str, Any]:
        path = self._directory.ready_file(child.spec.name)
        while True:
            content = read_json(path)
            if isinstance(content, dict) and content.get("pid") == child.entry.pid:
                return content
            await asyncio.sleep(POLL_S)

    async def _await_first_ready(self, child: Child) -> None:
        deadline = asyncio.get_running_loop().time() + START_DEADLINE_S
        while child.entry.state != "serving":
            assert child.process is not None
            ended = child.process.returncode is not None and child.entry.state != "serving"
            if ended or asyncio.get_running_loop().time() > deadline:
                tail = _last_lines(self._directory.log_file(child.spec.name).read_text(errors="replace"))
                how = (
                    _how_it_ended(child.process.returncode)
                    if ended
                    else f"did not serve within {START_DEADLINE_S:.0f} s"
                )
                raise CommandError(f"{_title(child)} {how} at its start; it said:\n{tail}")
            await asyncio.sleep(POLL_S)

    async def _terminate(self, child: Child, grace_s: float) -> None:
        process = child.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            say(
                f"ponor: {_title(child)} did not stop within {grace_s:.1f} s and is killed; its next start recovers"
            )
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()
        self._set_state(child, "stopped", pid=None)

    async def _cancel_watcher(self, child: Child) -> None:
        if child.watcher is not None:
            child.watcher.cancel()
            await asyncio.gather(child.watcher, return_exceptions=True)

    def _set_state(self, child: Child, state: str, *, pid: int | None) -> None:
        child.entry.state = state
        child.entry.pid = pid
        self._cluster.write(self._directory)


def _title(child: Child) -> str:
    return f"{child.spec.role} {child.spec.number}"


def _startup_lines(log_path: Path, position: int) -> list[str]:
    """What a process logged from its launch until it served (such as how long its recovery took), without time and level."""
    with log_path.open("rb") as log:
        log.seek(position)
        text = log.read(STARTUP_BYTES_MAX).decode(errors="replace")
    return [line.partition(": ")[2] or line for line in text.splitlines()]


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"died of {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _last_lines(text: str, count: int = 12) -> str:
    return "\n".join("    " + line for line in text.strip().splitlines()[-count:])


def install_stop_signals(callback: Callable[[], None]) -> None:
    """SIGINT and SIGTERM ask for a clean stop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, callback)
