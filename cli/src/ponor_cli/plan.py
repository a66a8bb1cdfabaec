"""From the options of `ponor up` to the processes it runs. Pure: nothing is started or written here.

Options that are not built yet are refused by name, so that nobody believes in a protection that is not there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ponor_runtime.identity import ClusterOrdinal, compose_node_id

from ponor_cli.directory import ClusterDirectory
from ponor_cli.errors import CommandError

CLUSTER_ORDINAL_DEFAULT = ClusterOrdinal(1)
BROKER_NUMBER_FIRST = 0
GC_NUMBER_FIRST = 1000
CONTROLLER_NUMBER_FIRST = 3000
"""Node numbers within the cluster: brokers from 0, GC from 1000, compactors from 2000, controllers from 3000."""

START_ORDER = ("controller", "broker", "gc")
"""Also the reverse order of stopping: brokers need the controller to close their streams."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the user asked for."""

    directory: ClusterDirectory
    controllers: int = 1
    brokers: int = 1
    compactors: int = 0
    gcs: int = 1
    host: str = "127.0.0.1"
    kafka_port: int = 9092
    object_store: str | None = None
    wal: str = "file"
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """Role -> setting -> value, as `settings_routing` sorted them."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to run."""

    role: str
    number: int
    node_id: int
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """`ROLE-N`."""
        return f"{self.role}-{self.number}"


def check_options(options: UpOptions) -> None:
    """Refuse what is not built yet, and what makes no sense.

    Raises:
        CommandError: names the option and the remedy.
    """
    if options.controllers != 1:
        raise CommandError(
            f"--controllers {options.controllers}: only one controller is built yet; leave the option out"
        )
    if options.brokers != 1:
        raise CommandError(f"--brokers {options.brokers}: only one broker is built yet; leave the option out")
    if options.compactors != 0:
        raise CommandError(
            f"--compactors {options.compactors}: compactors are not built yet; leave the option out"
        )
    if not 0 <= options.gcs <= 16:
        raise CommandError(f"--gcs {options.gcs}: choose 0 to 16")
    if options.wal == "object":
        raise CommandError("--wal object: the object write-ahead log is not built yet; use --wal file")
    if options.wal != "file":
        raise CommandError(f"--wal {options.wal}: unknown; use file")
    if not 1 <= options.kafka_port <= 65535 - options.brokers:
        raise CommandError(f"--kafka-port {options.kafka_port}: choose 1 to {65535 - options.brokers}")


def object_store_url(options: UpOptions) -> str:
    """The store's URL, absolute, so that a process finds it from any working directory.

    Raises:
        CommandError: the scheme is unknown.
    """
    url = options.object_store
    if url is None:
        return f"file://{options.directory.objects.resolve()}"
    if url.startswith("file://"):
        path = url.removeprefix("file://")
        if not path:
            raise CommandError("--object-store file://: names no directory; write file://DIR")
        return f"file://{Path(path).resolve()}"
    if url.startswith("s3://") and len(url) > len("s3://"):
        return url
    raise CommandError(f"--object-store {url}: write file://DIR or s3://BUCKET/PREFIX?endpoint=URL")


def plan(options: UpOptions, ports: list[int]) -> list[ProcessSpec]:
    """The processes in starting order. `ports` are free ports: one for each controller's RPC, then one metrics port per process."""
    check_options(options)
    controller_port, *metrics_ports = ports
    controllers = [f"{options.host}:{controller_port}"]
    store = object_store_url(options)
    specs: list[ProcessSpec] = []

    def add(role: str, number: int, first: int, extra: dict[str, Any]) -> None:
        node_id = compose_node_id(CLUSTER_ORDINAL_DEFAULT, first + number)
        name = f"{role}-{number}"
        config = {
            "node_id": node_id,
            "data": str(options.directory.process_data(name).resolve()),
            "ready_file": str(options.directory.ready_file(name).resolve()),
            "metrics": f"{options.host}:{metrics_ports[len(specs)]}",
            **extra,
            "settings": options.settings.get(role, {}),
        }
        specs.append(ProcessSpec(role, number, node_id, config))

    add(
        "controller",
        0,
        CONTROLLER_NUMBER_FIRST,
        {"listen": controllers[0], "cluster_ordinal": CLUSTER_ORDINAL_DEFAULT},
    )
    for number in range(options.brokers):
        kafka = {"kafka_host": options.host, "kafka_port": options.kafka_port + number}
        add(
            "broker",
            number,
            BROKER_NUMBER_FIRST,
            {"controllers": controllers, "object_store": store, **kafka},
        )
    for number in range(options.gcs):
        add("gc", number, GC_NUMBER_FIRST, {"controllers": controllers, "object_store": store})
    return specs


def ports_needed(options: UpOptions) -> int:
    """How many free ports `plan` takes."""
    return options.controllers + options.controllers + options.brokers + options.gcs
