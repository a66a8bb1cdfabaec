"""The services of the compose file as processes of this machine, each on its own loopback address,
with the file's environment: they connect, serve, drain and exit.

Names are replaced by addresses, directories are temporary, and the S3 server is the tests'. No
containers are used.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import places_of

from tests.deploy.composition import Container, containers
from tests.deploy.containers import ENTRYPOINT, PROBE
from tests.e2e.load.cluster import ponor
from tests.integration.seaweed_server import SeaweedServer

PATIENCE_S = 300.0
"""Only a hanging test takes this long: a dozen processes start at once on few cores."""
RECORDS = 50


@dataclass(frozen=True, slots=True)
class Running:
    """One service."""

    container: Container
    process: subprocess.Popen[bytes]
    directory: Path
    environment: dict[str, str]

    def addresses(self) -> dict[str, str]:
        """Wait until it serves."""
        deadline = time.monotonic() + PATIENCE_S
        ready_file = self.directory / "run" / "ready.json"
        while not ready_file.exists():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)
        addresses: dict[str, str] = json.loads(ready_file.read_text())["addresses"]
        return addresses

    def until_healthy(self) -> None:
        """Wait until the health check of the container passes."""
        deadline = time.monotonic() + PATIENCE_S
        while subprocess.run([sys.executable, PROBE, "readyz"], env=self.environment, check=False).returncode:
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.2)

    def log(self) -> str:
        """The output."""
        return f"{self.container.name}: {(self.directory / 'log').read_text()}"

    def end(self) -> int:
        """Send SIGTERM, as a container runtime does; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def test_the_services_serve_drain_and_exit(tmp_path: Path) -> None:
    hosts = _loopback_addresses()
    with SeaweedServer(tmp_path / "s3") as store, ExitStack() as stack:
        running = {
            each.name: stack.enter_context(_started(each, hosts, store, tmp_path / each.name))
            for each in containers()
            if each.name != "s3"
        }
        brokers = [each for name, each in running.items() if name.startswith("broker-")]
        for each in running.values():
            each.addresses()
            each.until_healthy()
        bootstrap = ",".join(each.addresses()["kafka"] for each in brokers)
        _records_go_in_and_come_out(bootstrap)
        # A broker without CPU time for long gets no new partition until it is heard again.
        while _leaders(bootstrap) != {0, 1, 2}:
            time.sleep(0.1)
        _one_broker_drains(brokers, bootstrap)
        controllers = ",".join(
            each.addresses()["session"] for name, each in running.items() if "controller" in name
        )
        _ponor("cluster", "announce-stop", "--seconds", "600", "--controllers", controllers)
        for role in ("broker", "compactor", "gc", "controller"):
            for name, each in running.items():
                if name.startswith(role) and each.process.poll() is None:
                    assert each.end() == 0, each.log()
        assert "the whole cluster is stopping" in brokers[0].log()


def _one_broker_drains(brokers: list[Running], bootstrap: str) -> None:
    """Stop its container: it first drains its partitions to the others."""
    assert brokers[2].end() == 0, brokers[2].log()
    assert "left the cluster" in brokers[2].log()
    while 2 in _leaders(bootstrap):
        time.sleep(0.1)  # the command's broker may receive the last move slightly later


def _records_go_in_and_come_out(bootstrap: str) -> None:
    _ponor("topic", "create", "t", "--partitions", "6", "--bootstrap", bootstrap)
    lines = "".join(f"{number}:record {number}\n" for number in range(RECORDS))
    _ponor("topic", "produce", "t", "-K", ":", "--bootstrap", bootstrap, given=lines)
    words = ["topic", "consume", "t", "--from-beginning", "--no-follow", "--bootstrap", bootstrap]
    assert sorted(_ponor(*words).split("\n")[:-1]) == sorted(f"record {number}" for number in range(RECORDS))


def _leaders(bootstrap: str) -> set[int]:
    with KafkaClient(bootstrap) as client:
        return {place.leader_id & 0xFFFF for place in places_of(client, ["t"])}


def _loopback_addresses() -> dict[str, str]:
    """One address per container, in a network that no other run uses."""
    network = f"127.{random.randrange(1, 255)}.{random.randrange(255)}"
    return {each.name: f"{network}.{1 + number}" for number, each in enumerate(containers())}


@contextmanager
def _started(
    container: Container, hosts: dict[str, str], store: SeaweedServer, directory: Path
) -> Iterator[Running]:
    for name in ("run", "data"):
        (directory / name).mkdir(parents=True)
    environment = {name: _resolved(value, hosts) for name, value in container.environment.items()}
    if "PONOR_OBJECT_STORE" in environment:
        environment["PONOR_OBJECT_STORE"] = store.url("compose")
    environment |= {
        "PONOR_POD": container.name,
        "PONOR_FORMAT": "true",
        "PONOR_LISTEN": hosts[container.name],
        "PONOR_ADVERTISED_HOST": hosts[container.name],
        "PONOR_RUN": str(directory / "run"),
        "PONOR_DATA": str(directory / "data"),
    }
    command = [sys.executable, str(ENTRYPOINT), *container.command]
    with (directory / "log").open("wb") as log:
        environment = {**os.environ, **environment}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield Running(container, process, directory, environment)
    finally:
        process.kill()
        process.wait()


def _resolved(value: str, hosts: dict[str, str]) -> str:
    return ",".join(hosts.get(part, part) for part in value.split(","))


def _ponor(*words: str, given: str = "") -> str:
    done = subprocess.run([ponor(), *words], input=given, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr or done.stdout}"
    return done.stdout
