"""Launch, watch and stop single processes. The supervisor decides which processes run, and in which
order they stop.

Each child has its own process group, so that Ctrl-C reaches only the supervisor. Each child holds
the read end of a pipe whose write end only this process has: when this process ends for any reason,
the children see the end of the pipe and stop within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import ProcessEntry
from ponor_cli.local.directory import ClusterDirectory, read_json
from ponor_cli.supervisor.plan import ProcessSpec
from ponor_cli.supervisor.process_report import how_it_ended, last_lines, say, startup_lines, waiting_line

PARENT_PIPE_VARIABLE = "PONOR_PARENT_FD"
RESOURCE_VARIABLE = "OTEL_RESOURCE_ATTRIBUTES"
START_DEADLINE_S = 600.0
"""A broker that starts may upload a full write-ahead log to a slow store."""
PROGRESS_S = 10.0
"""Interval of the progress lines during a slow start."""
LOG_BYTES_MAX = 64 * 1024 * 1024
POLL_S = 0.02


@dataclass(slots=True)
class Child:
    """A process: its plan, its entry in `cluster.json`, and its current run.

    Attributes:
        spec: the plan of the process.
        entry: its line in `cluster.json`.
        process: its current or last run.
        watcher: the task that restarts the process when it exits.
        wanted: whether the process is restarted when it exits.
        log_position: start of the current run in its log.
    """

    spec: ProcessSpec
    entry: ProcessEntry
    process: asyncio.subprocess.Process | None = None
    watcher: asyncio.Task[None] | None = None
    wanted: bool = True
    log_position: int = 0

    @property
    def title(self) -> str:
        """`ROLE N`, as in messages for people."""
        return f"{self.spec.role} {self.spec.number}"

    @property
    def runs(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.returncode is None


class Launcher:
    """Runs child processes. Calls `changed` after every change of a child's entry."""

    def __init__(
        self, directory: ClusterDirectory, environment: Mapping[str, str], changed: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._environment = environment
        self._changed = changed
        self._parent_read, self._parent_write = os.pipe()
        os.set_inheritable(self._parent_read, True)

    def close(self) -> None:
        """Close the pipe, after all children have ended."""
        os.close(self._parent_write)
        os.close(self._parent_read)

    async def launch(self, child: Child) -> None:
        """Start the process. Delete its old ready file, and append to its log.

        Raises:
            OSError: the system cannot create the process or its log.
        """
        name = child.spec.name
        self._directory.ready_file(name).unlink(missing_ok=True)
        log_path = self._directory.log_file(name)
        if log_path.exists() and log_path.stat().st_size > LOG_BYTES_MAX:
            log_path.replace(log_path.with_suffix(".log.1"))
        with log_path.open("ab") as log:
            child.log_position = log.tell()
            child.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", f"ponor_{child.spec.role}", "--config", str(self._directory.config_file(name)),  # noqa: E501
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                pass_fds=(self._parent_read,), env=self._environment_of(name),
            )  # fmt: skip
        self.set_state(child, "starting", pid=child.process.pid)

    def _environment_of(self, name: str) -> dict[str, str]:
        """Return this process's environment plus the child's name for traces and metrics."""
        environment = {**os.environ, **self._environment}
        attributes = [environment.get(RESOURCE_VARIABLE, ""), f"service.instance.id={name}"]
        environment[RESOURCE_VARIABLE] = ",".join(filter(None, attributes))
        environment[PARENT_PIPE_VARIABLE] = str(self._parent_read)
        return environment

    async def adopt_ready_file(self, child: Child) -> None:
        """Wait for the ready file, then publish the addresses in it."""
        content = await self._wait_ready_file(child)
        child.entry.addresses = {str(key): str(value) for key, value in content.get("addresses", {}).items()}
        metrics = child.entry.addresses.get("metrics")
        child.entry.metrics_url = f"http://{metrics}/metrics" if metrics else None
        self.set_state(child, "serving", pid=child.entry.pid)
        for line in startup_lines(self._directory.log_file(child.spec.name), child.log_position):
            say(f"ponor: {child.title}: {line}")

    async def _wait_ready_file(self, child: Child) -> dict[str, Any]:
        path = self._directory.ready_file(child.spec.name)
        while True:
            content = read_json(path)
            if isinstance(content, dict) and content.get("pid") == child.entry.pid:
                return content
            await asyncio.sleep(POLL_S)

    async def await_first_ready(self, child: Child, *, patience_s: float = math.inf) -> None:
        """Return when the child serves, or after `patience_s`. Prints a line at intervals until
        then.

        Raises:
            CommandError: the child exited or takes too long; the message has the last lines of its log.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline, line_due = began + START_DEADLINE_S, began + PROGRESS_S
        while child.entry.state != "serving":
            assert child.process is not None
            ended = child.process.returncode is not None and child.entry.state != "serving"
            if loop.time() > line_due:
                line_due += PROGRESS_S
                say(
                    "ponor:"
                    f" {waiting_line(child.title, loop.time() - began, self._directory.log_file(child.spec.name))}"  # noqa: E501
                )
            if ended or loop.time() > deadline:
                tail = last_lines(self._directory.log_file(child.spec.name).read_text(errors="replace"))
                how = (
                    how_it_ended(child.process.returncode)
                    if ended
                    else f"did not serve within {START_DEADLINE_S:.0f} s"
                )
                raise CommandError(f"{child.title} {how} at its start; last lines of its log:\n{tail}")
            if loop.time() - began >= patience_s:
                log = self._directory.log_file(child.spec.name)
                say(
                    f"ponor: {waiting_line(child.title, loop.time() - began, log)}; the start"
                    " continues without it"
                )
                return
            await asyncio.sleep(POLL_S)

    async def stop(self, child: Child, grace_s: float) -> bool:
        """Send SIGTERM. Returns whether the process exited in time."""
        process = child.process
        if process is None or process.returncode is not None:
            return True
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            return False
        return True

    async def terminate(self, child: Child, grace_s: float) -> None:
        """Stop a process, with SIGKILL after `grace_s`."""
        process = child.process
        if process is None or process.returncode is not None:
            return
        if not await self.stop(child, grace_s):
            say(
                f"ponor: {child.title} did not stop within {grace_s:.1f} s: killed; it recovers"
                " at its next start"
            )
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()
        self.set_state(child, "stopped", pid=None)

    def set_state(self, child: Child, state: str, *, pid: int | None) -> None:
        """Set the state of a child, one of those of `ProcessEntry`."""
        child.entry.state = state
        child.entry.pid = pid
        self._changed()
