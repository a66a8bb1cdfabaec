"""Plan the processes of `ponor up` and their configurations. Pure: nothing is started or written here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ponor_runtime.host_port import join_host_port
from ponor_runtime.identity import ClusterOrdinal, compose_node_id

from ponor_cli.errors import CommandError
from ponor_cli.local.directory import ClusterDirectory
from ponor_cli.local.quorum_file import UNDRAWN_ORDINAL, ControllerPlace, QuorumFile
from ponor_cli.supervisor.up_options import (
    BROKERS_MAX,
    COMPACTORS_MAX,
    CONTROLLERS_MAX,
    GCS_MAX,
    UpOptions,
    advertised_host,
    check_options,
    listeners_of,
    object_store_url,
)

BROKER_NUMBER_FIRST = 0
GC_NUMBER_FIRST = 1000
COMPACTOR_NUMBER_FIRST = 2000
CONTROLLER_NUMBER_FIRST = 3000
"""Node numbers within the cluster: brokers from 0, GC from 1000, compactors from 2000, controllers from 3000.
"""
SHARED_NUMBER_FIRST: Final[Mapping[str, int]] = {"gc": GC_NUMBER_FIRST, "compactor": COMPACTOR_NUMBER_FIRST}
"""First numbers of the roles whose nodes need only the shared configuration."""

PORTS_PER_CONTROLLER: Final = 2
"""One port for nodes and tools, one for the other controllers."""
ADDED_MAX: Final[Mapping[str, int]] = {
    "broker": BROKERS_MAX,
    "gc": GCS_MAX,
    "compactor": COMPACTORS_MAX,
    "controller": CONTROLLERS_MAX,
}
"""Maximum number of nodes per role in a running cluster. While controllers are replaced, old and new ones
run.
"""

START_ORDER = ("controller", "broker", "gc", "compactor")
"""`Supervisor.stop` stops controllers last, because brokers need a controller to close their streams."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to run."""

    role: str
    number: int
    node_id: int
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """`ROLE-N`."""
        return f"{self.role}-{self.number}"


def broker_numbers(wanted: int, present: Sequence[int]) -> list[int]:
    """Return the numbers of the brokers to start: those of the last start, then the lowest free numbers.

    Raises:
        CommandError: `wanted` is less than the number of brokers that own partitions.
    """
    if wanted < len(present):
        raise CommandError(
            f"--brokers {wanted}: the cluster has {len(present)} ({', '.join(map(str, present))}),"
            " which own partitions; start them all, then remove brokers with `ponor node remove broker N`"
        )
    free = (number for number in range(wanted) if number not in present)
    return sorted([*present, *(next(free) for _ in range(wanted - len(present)))])


def plan(
    options: UpOptions, quorum: QuorumFile, ports: list[int], brokers: Sequence[int] | None = None
) -> list[ProcessSpec]:
    """Return the processes in starting order. `brokers` are the brokers' numbers, by default 0 to
    N-1.

    `ports` are `ports_needed` free ports: two per controller, then a metrics port per process.
    """
    check_options(options)
    numbers = range(options.brokers) if brokers is None else brokers
    assert len(numbers) == options.brokers
    voters = quorum.controllers
    assert len(voters) == options.controllers
    assert len(ports) == ports_needed(options)
    rows = [
        _voter(advertised_host(options), voter, quorum.cluster_ordinal, ports[PORTS_PER_CONTROLLER * at :])
        for at, voter in enumerate(voters)
    ]
    places = cluster_configuration(options, quorum, [row["service_address"] for row in rows])
    metrics = iter(ports[PORTS_PER_CONTROLLER * len(rows) :])
    specs = [
        _spec(
            places,
            "controller",
            voter.number,
            CONTROLLER_NUMBER_FIRST,
            next(metrics),
            _controller(options.host, row, rows, quorum),
            options.settings,
        )
        for voter, row in zip(voters, rows, strict=True)
    ]
    specs.extend(
        _spec(
            places,
            "broker",
            number,
            BROKER_NUMBER_FIRST,
            next(metrics),
            places.broker(number),
            options.settings,
        )
        for number in numbers
    )
    for role, count in (("gc", options.gcs), ("compactor", options.compactors)):
        first = SHARED_NUMBER_FIRST[role]
        specs.extend(
            _spec(places, role, number, first, next(metrics), places.shared, options.settings)
            for number in range(count)
        )
    return specs


def cluster_configuration(
    options: UpOptions, quorum: QuorumFile, controllers: list[str]
) -> ClusterConfiguration:
    """Return the addresses and paths of the cluster."""
    return ClusterConfiguration(
        options.directory,
        options.host,
        controllers,
        object_store_url(options),
        options.kafka_port,
        options.wal,
        options.advertise,
        quorum.cluster_id,
        quorum.cluster_ordinal,
        options.share_store,
        options.listeners,
    )


def bootstrap_of(specs: Sequence[ProcessSpec]) -> str:
    """Return the bootstrap addresses for clients: all brokers."""
    brokers = [spec.config for spec in specs if spec.role == "broker"]
    return ",".join(
        join_host_port(config.get("advertised_host", config["kafka_host"]), config["kafka_port"])
        for config in brokers
    )


def _voter(host: str, voter: ControllerPlace, ordinal: ClusterOrdinal, ports: list[int]) -> dict[str, Any]:
    service_port, peer_port = ports[:PORTS_PER_CONTROLLER]
    return {
        "node_id": compose_node_id(ordinal, CONTROLLER_NUMBER_FIRST + voter.number),
        "peer_address": join_host_port(host, peer_port),
        "service_address": join_host_port(host, service_port),
    }


def _controller(
    host: str, own: dict[str, Any], voters: list[dict[str, Any]], quorum: QuorumFile
) -> dict[str, Any]:
    return {
        "listen": at(host, own["service_address"]),
        "peer_listen": at(host, own["peer_address"]),
        "cluster_ordinal": quorum.cluster_ordinal,
        "voters": voters,
        "format": not quorum.formatted,
        "cluster_id": quorum.cluster_id,
    }


@dataclass(frozen=True, slots=True)
class ClusterConfiguration:
    """Addresses and paths of a cluster: the configuration that all its nodes have."""

    directory: ClusterDirectory
    host: str
    controllers: list[str]
    object_store: str
    kafka_port: int = 9092
    wal: str = "file"
    advertise: str | None = None
    cluster_id: str = ""
    cluster_ordinal: ClusterOrdinal = UNDRAWN_ORDINAL
    share_store: bool = False
    listeners: tuple[dict[str, Any], ...] = ()

    def reached(self, address: str) -> str:
        """Return the advertised address of a process that listens on `address`."""
        return at(self.advertise or self.host, address)

    @property
    def shared(self) -> dict[str, Any]:
        """Configuration that all nodes except controllers have in common."""
        return {
            "controllers": self.controllers,
            "object_store": self.object_store,
            "cluster_id": self.cluster_id,
            "share_store": self.share_store,
        }

    def broker(self, number: int) -> dict[str, Any]:
        """Return the configuration of a broker, without the part that all processes have."""
        return {
            **self.shared,
            "kafka_host": self.host,
            **({"advertised_host": self.advertise} if self.advertise else {}),
            "kafka_port": self.kafka_port + number,
            **({"listeners": listeners_of(self.listeners, number)} if self.listeners else {}),
            "wal": self.wal,
        }


def check_addition(role: str, present: int) -> None:
    """Check that a node of this role can be added.

    Raises:
        CommandError: the role cannot be added, or it has its maximum.
    """
    if role not in ADDED_MAX:
        raise CommandError(f"unknown role {role}; choose {', '.join(ADDED_MAX)}")
    if present >= ADDED_MAX[role]:
        raise CommandError(
            f"{present} {role} nodes run, and {ADDED_MAX[role]} is the maximum; remove one with"
            f" `ponor node remove {role} N`"
        )


def plan_addition(
    places: ClusterConfiguration, role: str, number: int, ports: list[int], settings: dict[str, str]
) -> ProcessSpec:
    """Plan one more node for a running cluster. `ports` are those of `ports_of_process`."""
    if role in SHARED_NUMBER_FIRST:
        first = SHARED_NUMBER_FIRST[role]
        return _spec(places, role, number, first, ports[0], places.shared, {role: settings})
    if role == "broker":
        own = places.broker(number)
        return _spec(places, role, number, BROKER_NUMBER_FIRST, ports[0], own, {role: settings})
    service_port, peer_port, metrics_port = ports
    blank = {
        "listen": join_host_port(places.host, service_port),
        "peer_listen": join_host_port(places.host, peer_port),
        "cluster_ordinal": places.cluster_ordinal,
        "format": False,
    }
    return _spec(places, role, number, CONTROLLER_NUMBER_FIRST, metrics_port, blank, {role: settings})


def at(host: str, address: str) -> str:
    """Return the address with its host replaced by `host`."""
    return join_host_port(host, int(address.rpartition(":")[2]))


def ports_needed(options: UpOptions) -> int:
    """Return how many ports `plan` needs."""
    processes = options.controllers + options.brokers + options.gcs + options.compactors
    return PORTS_PER_CONTROLLER * options.controllers + processes


def _spec(
    places: ClusterConfiguration,
    role: str,
    number: int,
    first: int,
    metrics_port: int,
    extra: dict[str, Any],
    settings: Mapping[str, dict[str, str]],
) -> ProcessSpec:
    node_id = compose_node_id(places.cluster_ordinal, first + number)
    name = f"{role}-{number}"
    config = {
        "node_id": node_id,
        "data": str(places.directory.process_data(name).resolve()),
        "ready_file": str(places.directory.ready_file(name).resolve()),
        "metrics": join_host_port(places.host, metrics_port),
        **extra,
        "settings": settings.get(role, {}),
    }
    return ProcessSpec(role, number, node_id, config)
