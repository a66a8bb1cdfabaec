"""A cluster of real processes for tests: `ponor up` in a directory of its own, on ports of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_S_MAX = 120.0


class LocalCluster:
    """Start, look at, hurt and stop a cluster."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.kafka_port = free_port()
        self._settings = dict(settings or {})
        self._arguments = list(arguments)
        self._environment = {**os.environ, **(environment or {})}
        self._up: subprocess.Popen[bytes] | None = None
        self.output = directory / "up.out"

    @property
    def bootstrap(self) -> str:
        """What clients are given."""
        return f"127.0.0.1:{self.kafka_port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start and wait until clients can produce."""
        self.directory.mkdir(parents=True, exist_ok=True)
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)
        command = [
            ponor(),
            "up",
            "--data",
            str(self.directory / "data"),
            "--kafka-port",
            str(self.kafka_port),
        ]
        command += ["--ready-file", str(ready), *self._arguments]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        with self.output.open("ab") as output:
            self._up = subprocess.Popen(command, stdout=output, stderr=output, env=self._environment)
        deadline = time.monotonic() + START_S_MAX
        while not ready.exists():
            if self._up.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"ponor up did not become ready:\n{self.output.read_text()}")
            time.sleep(0.02)

    def stop(self) -> float:
        """SIGTERM; returns the seconds it took."""
        assert self._up is not None
        began = time.monotonic()
        if self._up.poll() is None:
            self._up.send_signal(signal.SIGTERM)
            self._up.wait(30)
        return time.monotonic() - began

    def kill_supervisor(self) -> None:
        """SIGKILL `ponor up` itself."""
        assert self._up is not None
        self._up.kill()
        self._up.wait()

    def describe(self) -> dict[str, Any]:
        """cluster.json."""
        content: dict[str, Any] = json.loads((self.directory / "data" / "cluster.json").read_text())
        return content

    def process(self, role: str, number: int = 0) -> dict[str, Any]:
        """One entry of cluster.json."""
        entry: dict[str, Any] = next(
            entry for entry in self.describe()["processes"] if entry["role"] == role and entry["id"] == number
        )
        return entry

    def kill(self, role: str, number: int = 0) -> None:
        """SIGKILL one process; the supervisor restarts it."""
        pid = self.process(role, number)["pid"]
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def wait_serving(
        self, role: str, number: int = 0, *, after_restarts: int = 0, timeout_s: float = 60.0
    ) -> None:
        """Wait until the process serves again."""
        deadline = time.monotonic() + timeout_s
        while True:
            entry = self.process(role, number)
            if entry["state"] == "serving" and entry["restarts"] >= after_restarts:
                return
            assert time.monotonic() < deadline, f"{role} {number} does not serve: {entry}"
            time.sleep(0.02)

    def metric(self, role: str, name: str, labels: Mapping[str, str], number: int = 0) -> float:
        """Sum of a metric's samples that have these labels."""
        with urllib.request.urlopen(self.process(role, number)["metrics_url"], timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        total = 0.0
        for line in lines:
            if line.startswith((name + "{", name + " ")) and all(
                f'{key}="{value}"' in line for key, value in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def log(self, role: str, number: int = 0) -> str:
        """What a process had to say."""
        return Path(self.process(role, number)["log_file"]).read_text(errors="replace")

    def run(self, *words: str) -> str:
        """Run a `ponor` command against this cluster."""
        command = [ponor(), *words, "--data", str(self.directory / "data")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=self._environment)
        assert done.returncode == 0, f"{' '.join(words)} failed: {done.stderr or done.stdout}"
        return done.stdout


def ponor() -> str:
    """Path of the installed command."""
    return str(Path(sys.executable).with_name("ponor"))


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
