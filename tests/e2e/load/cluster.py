"""A cluster of real processes for tests: `ponor up` in its own directory and on its own ports."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from ponor_cli.main import app
from ponor_runtime.identity import ClusterOrdinal
from typer.testing import CliRunner

from tests.ports import free_ports

START_S_MAX = 600.0
STOP_S_MAX = 240.0
MIB: Final = 1 << 20
SMALL_LOGS: Final = {"wal_bytes_max": 128 * MIB, "log_segment_bytes": 4 * MIB}
"""A start fills two segments of each log with zeros. With the default sizes, three brokers write half a
gigabyte, and other tests wait for the disk."""
BROKERS_ADDED_MAX = 2
"""Maximum number of brokers that a test adds to a running cluster."""


class LocalCluster:
    """Starts, inspects, kills and stops a cluster.

    Attributes:
        defaults: settings that a test may override. Only acceptance tests and benchmarks need the sizes of a
            production cluster.
    """

    defaults: ClassVar[Mapping[str, object]] = {}

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        command: str | None = None,
    ) -> None:
        """`command`: path of the `ponor` to start; the installed one by default."""
        self.directory = directory
        self.kafka_port = free_ports(_brokers(arguments) + BROKERS_ADDED_MAX)
        self._settings = {**self.defaults, **(settings or {})}
        # No background work that the test does not check: compaction must be requested.
        self._arguments = [*([] if "--compactors" in arguments else ["--compactors", "0"]), *arguments]
        self._environment = {**os.environ, **(environment or {})}
        self._command = command or ponor()
        self._up: subprocess.Popen[bytes] | None = None
        self.output = directory / "up.out"

    @property
    def bootstrap(self) -> str:
        """Bootstrap addresses: all brokers."""
        return str(self.describe()["bootstrap"])

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
            self._command,
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
        """Send SIGTERM; return the seconds until the exit."""
        assert self._up is not None
        began = time.monotonic()
        if self._up.poll() is None:
            self._up.send_signal(signal.SIGTERM)
            self._up.wait(STOP_S_MAX)
        return time.monotonic() - began

    def kill_supervisor(self) -> None:
        """Send SIGKILL to `ponor up` itself."""
        assert self._up is not None
        self._up.kill()
        self._up.wait()

    def describe(self) -> dict[str, Any]:
        """Read cluster.json."""
        content: dict[str, Any] = json.loads((self.directory / "data" / "cluster.json").read_text())
        return content

    @property
    def ordinal(self) -> ClusterOrdinal:
        """Read the cluster's ordinal from its directory."""
        recorded = json.loads((self.directory / "data" / "quorum.json").read_text())
        return ClusterOrdinal(recorded["cluster_ordinal"])

    def process(self, role: str, number: int = 0) -> dict[str, Any]:
        """Return one entry of cluster.json."""
        entry: dict[str, Any] = next(
            entry for entry in self.describe()["processes"] if entry["role"] == role and entry["id"] == number
        )
        return entry

    def kill(self, role: str, number: int = 0) -> bool:
        """Send SIGKILL to one process, which the supervisor restarts.

        Return whether it existed: cluster.json may be outdated.
        """
        pid = self.process(role, number)["pid"]
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def wait_serving(
        self, role: str, number: int = 0, *, after_restarts: int = 0, timeout_s: float = 600.0
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
        """Sum the samples of a metric that have these labels."""
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in self._samples(role, name, number)
            if all(f'{key}="{value}"' in line for key, value in labels.items())
        )

    def above(
        self,
        role: str,
        name: str,
        bounds: Sequence[int],
        number: int = 0,
        wanted: Mapping[str, str] | None = None,
        *,
        per_unit: int = 1,
    ) -> dict[int, int]:
        """Count a histogram's values (with the `wanted` labels) above each of some of its bounds, from one
        scrape.

        `per_unit` bounds are one unit of the metric. Separate scrapes would not be consistent.
        """
        up_to: Counter[float] = Counter()
        for line in self._samples(role, f"{name}_bucket", number):
            labels, _, count = line.rpartition(" ")
            if any(f'{key}="{value}"' not in labels for key, value in (wanted or {}).items()):
                continue
            up_to[float(labels.partition('le="')[2].partition('"')[0])] += int(float(count))
        return {bound: up_to[math.inf] - up_to[bound / per_unit] for bound in bounds}

    def _samples(self, role: str, name: str, number: int) -> list[str]:
        with urllib.request.urlopen(self.process(role, number)["metrics_url"], timeout=120) as answer:
            lines = answer.read().decode().splitlines()
        return [line for line in lines if line.startswith((name + "{", name + " "))]

    def log(self, role: str, number: int = 0) -> str:
        """Return the log of a process."""
        return Path(self.process(role, number)["log_file"]).read_text(errors="replace")

    def run(self, *words: str) -> str:
        """Run a `ponor` command against this cluster; return its stdout.

        It runs in this process, because tests run dozens of commands and starting Python takes longer than a
        command. Tests in tests/integration and cli/tests cover commands as processes (pipes, signals, exit
        codes).
        """
        done = CliRunner().invoke(
            app, [*words, "--data", str(self.directory / "data")], env=self._environment
        )
        assert done.exit_code == 0, f"{' '.join(words)} failed: {done.exception!r} {done.output}"
        return done.stdout


def ponor() -> str:
    """Path of the installed command."""
    return str(Path(sys.executable).with_name("ponor"))


def _brokers(arguments: Sequence[str]) -> int:
    return int(arguments[arguments.index("--brokers") + 1]) if "--brokers" in arguments else 1
