"""From the options of `ponor up` to the processes it runs. Pure: nothing is started or written here.

Options that are not built yet are refused by name, so that nobody believes in a protection that is not there.
"""

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
    check_options,
    object_store_url,
    reach,
)

BROKER_NUMBER_FIRST = 0
GC_NUMBER_FIRST = 1000
COMPACTOR_NUMBER_FIRST = 2000
CONTROLLER_NUMBER_FIRST = 3000
"""Node numbers within the cluster: brokers from 0, GC from 1000, compactors from 2000, controllers from 3000."""
SHARED_NUMBER_FIRST: Final[Mapping[str, int]] = {"gc": GC_NUMBER_FIRST, "compactor": COMPACTOR_NUMBER_FIRST}
"""Roles whose nodes are told nothing but what all nodes are."""

PORTS_PER_CONTROLLER: Final = 2
"""One for nodes and tools, one for the other controllers."""
ADDED_MAX: Final[Mapping[str, int]] = {
    "broker": BROKERS_MAX,
    "gc": GCS_MAX,
    "compactor": COMPACTORS_MAX,
    "controller": CONTROLLERS_MAX,
}
"""Roles of which nodes can be added to a running cluster, and how many of each may run. While machines are replaced, old and new controllers run."""

START_ORDER = ("controller", "broker", "gc", "compactor")
"""Also the reverse order of stopping: brokers need the controller to close their streams."""


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


def broker_numbers(wanted: int, present: Sequence[int]) -> list[int]:
    """Numbers of the brokers to start: those of the last time, who hold partitions, and the lowest free ones for what is wanted beyond.

    Raises:
        CommandError: fewer are wanted than hold partitions.
    """
    if wanted < len(present):
        raise CommandError(
            f"--brokers {wanted}: the cluster has {len(present)} ({', '.join(map(str, present))}), which hold partitions; start them all, "
            "then let `ponor node remove broker N` move the partitions of those that are to go"
        )
    free = (number for number in range(wanted) if number not in present)
    return sorted([*present, *(next(free) for _ in range(wanted - len(present)))])


def plan(
    options: UpOptions, quorum: QuorumFile, ports: list[int], brokers: Sequence[int] | None = None
) -> list[ProcessSpec]:
    """The processes in starting order, the brokers by their numbers (from 0 unless said otherwise).

    `ports` are free ones, `ports_needed` of them: two for each controller, then one metrics port per process.
    """
    check_options(options)
    numbers = range(options.brokers) if brokers is None else brokers
    assert len(numbers) == options.brokers
    voters = quorum.controllers
    assert len(voters) == options.controllers
    assert len(ports) == ports_needed(options)
    rows = [
        _voter(reach(options), voter, quorum.cluster_ordinal, ports[PORTS_PER_CONTROLLER * at :])
        for at, voter in enumerate(voters)
    ]
    places = cluster_places(options, quorum, [row["service_address"] for row in rows])
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


def cluster_places(options: UpOptions, quorum: QuorumFile, controllers: list[str]) -> ClusterPlaces:
    """Where the cluster is that the options and its file speak of."""
    return ClusterPlaces(
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
    )


def bootstrap_of(specs: Sequence[ProcessSpec]) -> str:
    """What clients are given: the addresses of all brokers."""
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
class ClusterPlaces:
    """Where a cluster is: what every node of it is told."""

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

    def reached(self, address: str) -> str:
        """The address under which others reach a process that listens on this one."""
        return at(self.advertise or self.host, address)

    @property
    def shared(self) -> dict[str, Any]:
        """The part of a node's configuration that all nodes but controllers have in common."""
        return {
            "controllers": self.controllers,
            "object_store": self.object_store,
            "cluster_id": self.cluster_id,
            "share_store": self.share_store,
        }

    def broker(self, number: int) -> dict[str, Any]:
        """What a broker is told beyond what every process is."""
        return {
            **self.shared,
            "kafka_host": self.host,
            **({"advertised_host": self.advertise} if self.advertise else {}),
            "kafka_port": self.kafka_port + number,
            "wal": self.wal,
        }


def check_addition(role: str, present: int) -> None:
    """Whether a node of this role can join a running cluster.

    Raises:
        CommandError: says why not, and what can.
    """
    if role not in ADDED_MAX:
        raise CommandError(f"there is no role {role}; {' or '.join(ADDED_MAX)} can be added")
    if present >= ADDED_MAX[role]:
        raise CommandError(
            f"{present} {role} nodes are there already, at most {ADDED_MAX[role]} may be; remove one with `ponor node remove {role} N`"
        )


def plan_addition(
    places: ClusterPlaces, role: str, number: int, ports: list[int], settings: dict[str, str]
) -> ProcessSpec:
    """One more node for a running cluster, where `check_addition` let it. `ports` as `plan` takes them for one process of the role."""
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
    """The address with another host."""
    return join_host_port(host, int(address.rpartition(":")[2]))


def ports_needed(options: UpOptions) -> int:
    """How many free ports `plan` takes."""
    processes = options.controllers + options.brokers + options.gcs + options.compactors
    return PORTS_PER_CONTROLLER * options.controllers + processes


def _spec(
    places: ClusterPlaces,
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
