"""A real Apache Kafka on this machine: one node that is broker and controller, started from the
jars that `make peers` fetched.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from tests.peers.artifacts import KAFKA, java
from tests.ports import free_port

START_S_MAX: Final = 120.0
STOP_S_MAX: Final = 60.0
STARTED: Final = "Kafka Server started"

SETTINGS: Final[Mapping[str, object]] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "num.partitions": 4,
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
}
"""One node, one replica, groups without an initial delay; other settings are Kafka's defaults."""

LOGGING: Final = """\
Configuration:
  Appenders:
    Console: {name: STDOUT, PatternLayout: {pattern: "[%d] %p %m (%c)%n"}}
  Loggers:
    Root: {level: WARN, AppenderRef: [{ref: STDOUT}]}
    Logger: [{name: kafka.server.KafkaRaftServer, level: INFO}]
"""


class KafkaPeer:
    """Start Kafka, say where it is and what it costs, stop it. A second start on the same directory finds its
    data.

    `settings` are lines of server.properties over `SETTINGS`; `cluster_id` joins a second node to the first
    one's cluster; `cpus` pins the process (the JVM then sees only these); `heap` is both -Xms and -Xmx;
    `jvm_flags` go before the class. Raises PeerMissingError where Java or the jars are missing,
    AssertionError when it does not start.
    """

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        cpus: Collection[int] | None = None,
        heap: str = "1g",
        jvm_flags: Sequence[str] = (),
        port: int = 0,
        cluster_id: str = "",
    ) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.controller_port = free_port()
        self.output = directory / "kafka.out"
        self._settings = {**SETTINGS, **self._addresses(), **(settings or {})}
        self._cpus = cpus
        self._heap = heap
        self._jvm_flags = list(jvm_flags)
        self._cluster_id = cluster_id or new_cluster_id()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Bootstrap address for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None, "Kafka was not started"
        return self._process.pid

    def cpu_s(self) -> float:
        """User and system CPU seconds of the process since its start, all threads."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def rss_bytes(self) -> int:
        """Resident memory."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Format the directory if it is new, start, and wait until it serves."""
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        (self.directory / "log4j2.yaml").write_text(LOGGING)
        if not (self.directory / "logs" / "meta.properties").exists():
            self._format(properties)
        flags = [f"-Xms{self._heap}", f"-Xmx{self._heap}", *self._jvm_flags]
        begin = self.output.stat().st_size if self.output.exists() else 0
        with self.output.open("ab") as output, _pinned(self._cpus):
            command = self._java(*flags, "kafka.Kafka", str(properties))
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        self._wait_until_it_serves(begin)

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL after a timeout."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def _addresses(self) -> dict[str, object]:
        return {
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.directory / "logs"),
        }

    def _java(self, *words: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.yaml'}"
        return [java(), "-server", logging, "-cp", KAFKA.class_path, *words]

    def _format(self, properties: Path) -> None:
        words = ["format", "-t", self._cluster_id, "-c", str(properties)]
        tool = ["-Xmx256m", "kafka.tools.StorageTool", *words]
        done = subprocess.run(
            self._java(*tool), capture_output=True, text=True, timeout=START_S_MAX, check=False
        )
        assert done.returncode == 0, f"Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}"

    def _wait_until_it_serves(self, begin: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S_MAX
        while True:
            said = self.output.read_bytes()[begin:].decode(errors="replace")
            if STARTED in said:
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"Kafka did not start:\n{said[-4000:]}")
            time.sleep(0.05)


def new_cluster_id() -> str:
    """A UUID in Kafka's notation."""
    cluster_id = base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()
    return (
        f"A{cluster_id[1:]}" if cluster_id.startswith("-") else cluster_id
    )  # a leading dash would look like an option


@contextmanager
def _pinned(cpus: Collection[int] | None) -> Iterator[None]:
    """Pin processes started in this context to these CPUs: a child inherits the affinity of its
    parent thread.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before if cpus is None else cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
