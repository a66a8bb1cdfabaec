"""From the options of `ponor up` to the processes it runs. Pure: nothing is started or written here.

Options that are not built yet are refused by name, so that nobody believes in a protection that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ponor_runtime.identity import ClusterOrdinal, compose_node_id

from ponor_cli.directory import ClusterDirectory
from ponor_cli.errors import CommandError

CLUSTER_ORDINAL_DEFAULT = ClusterOrdinal(1)
BROKER_NUMBER_FIRST = 0
GC_NUMBER_FIRST = 1000
CONTROLLER_NUMBER_FIRST = 3000
"""Node numbers within the cluster: brokers from 0, GC from 1000, compactors from 2000, controllers from 3000."""

GCS_MAX = 16

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
    otlp: str | None = None
    trace_ratio: float | None = None
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
    if not 0 <= options.gcs <= GCS_MAX:
        raise CommandError(f"--gcs {options.gcs}: choose 0 to {GCS_MAX}")
    if options.wal == "object":
        raise CommandError("--wal object: the object write-ahead log is not built yet; use --wal file")
    if options.wal != "file":
        raise CommandError(f"--wal {options.wal}: unknown; use file")
    if options.otlp is not None and not options.otlp.startswith(("http://", "https://")):
        raise CommandError(
            f"--otlp {options.otlp}: write http://HOST:4318, where a collector takes OTLP over HTTP"
        )
    if options.trace_ratio is not None and not 0.0 <= options.trace_ratio <= 1.0:
        raise CommandError(
            f"--trace-ratio {options.trace_ratio}: give the share of requests to trace, 0 to 1"
        )
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
    places = ClusterPlaces(
        options.directory, options.host, [f"{options.host}:{controller_port}"], object_store_url(options)
    )
    metrics = iter(metrics_ports)
    controller = {"listen": places.controllers[0], "cluster_ordinal": CLUSTER_ORDINAL_DEFAULT}
    specs = [
        _spec(places, "controller", 0, CONTROLLER_NUMBER_FIRST, next(metrics), controller, options.settings)
    ]
    for number in range(options.brokers):
        kafka = {**places.shared, "kafka_host": options.host, "kafka_port": options.kafka_port + number}
        specs.append(
            _spec(places, "broker", number, BROKER_NUMBER_FIRST, next(metrics), kafka, options.settings)
        )
    specs.extend(
        _spec(places, "gc", number, GC_NUMBER_FIRST, next(metrics), places.shared, options.settings)
        for number in range(options.gcs)
    )
    return specs


@dataclass(frozen=True, slots=True)
class ClusterPlaces:
    """Where a cluster is: what every node of it is told."""

    directory: ClusterDirectory
    host: str
    controllers: list[str]
    object_store: str

    @property
    def shared(self) -> dict[str, Any]:
        """The part of a node's configuration that all nodes but controllers have in common."""
        return {"controllers": self.controllers, "object_store": self.object_store}


REFUSED_ROLES: Final[Mapping[str, str]] = {
    "broker": "partitions cannot move to a second broker yet; the cluster's one broker serves all of them",
    "controller": "the controllers' log has one voter yet; a second controller would have nothing to vote on",
    "compactor": "compactors are not built yet",
}
"""Roles of which there is one, or none, and why."""


def check_addition(role: str, present: int) -> None:
    """Whether a node of this role can join a running cluster.

    Raises:
        CommandError: says why not, and what can.
    """
    if role in REFUSED_ROLES:
        raise CommandError(f"no {role} can be added: {REFUSED_ROLES[role]}; only gc nodes can be added now")
    if role != "gc":
        raise CommandError(f"there is no role {role}; a gc can be added")
    if present >= GCS_MAX:
        raise CommandError(
            f"{present} gc nodes run already, at most {GCS_MAX} may; remove one with `ponor node remove gc N`"
        )


def plan_addition(
    places: ClusterPlaces, role: str, number: int, metrics_port: int, settings: dict[str, str]
) -> ProcessSpec:
    """One more node for a running cluster, where `check_addition` let it."""
    return _spec(places, role, number, GC_NUMBER_FIRST, metrics_port, places.shared, {role: settings})


def export_environment(options: UpOptions) -> dict[str, str]:
    """What `--otlp` and `--trace-ratio` mean in OpenTelemetry's own variables, which the processes read."""
    environment: dict[str, str] = {}
    if options.otlp is not None:
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = options.otlp
    if options.trace_ratio is not None:
        environment["OTEL_TRACES_SAMPLER"] = "parentbased_traceidratio"
        environment["OTEL_TRACES_SAMPLER_ARG"] = str(options.trace_ratio)
    return environment


def ports_needed(options: UpOptions) -> int:
    """How many free ports `plan` takes."""
    return options.controllers + options.controllers + options.brokers + options.gcs


def _spec(
    places: ClusterPlaces,
    role: str,
    number: int,
    first: int,
    metrics_port: int,
    extra: dict[str, Any],
    settings: Mapping[str, dict[str, str]],
) -> ProcessSpec:
    node_id = compose_node_id(CLUSTER_ORDINAL_DEFAULT, first + number)
    name = f"{role}-{number}"
    config = {
        "node_id": node_id,
        "data": str(places.directory.process_data(name).resolve()),
        "ready_file": str(places.directory.ready_file(name).resolve()),
        "metrics": f"{places.host}:{metrics_port}",
        **extra,
        "settings": settings.get(role, {}),
    }
    return ProcessSpec(role, number, node_id, config)
