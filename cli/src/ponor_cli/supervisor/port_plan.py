"""Ports of a local cluster, derived from the Kafka port. They are the same at every start, so that
Prometheus can be configured.

One block of `BLOCK` ports: brokers, then controllers (one port for nodes and tools, one for other
controllers), then the metrics of every process. If a port is in use, `ponor up` takes a
free one for this start and prints a line about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ponor_cli.local.ports import free_ports, is_listenable, random_port

BLOCK: Final = 90
SERVICE_FIRST: Final = 20
PEER_FIRST: Final = 30
METRICS_FIRST: Final = {"controller": 40, "broker": 50, "gc": 66, "compactor": 82}
CONTROLLER_PORTS: Final = 10
"""Controllers whose numbers differ by a multiple of this have the same ports. Numbers are never used
twice, so they exceed this value after enough changes."""


class PlannedPort(NamedTuple):
    """A port and the process that listens on it."""

    owner: str
    port: int


def ports_of_process(kafka_port: int, role: str, number: int) -> list[PlannedPort]:
    """Return the ports of one process without its Kafka port, the metrics port last."""
    title = f"{role} {number}"
    place = number % CONTROLLER_PORTS if role == "controller" else number
    ports = [PlannedPort(f"the metrics of {title}", kafka_port + METRICS_FIRST[role] + place)]
    if role != "controller":
        return ports
    service = PlannedPort(title, kafka_port + SERVICE_FIRST + place)
    peer = PlannedPort(f"{title}, for other controllers,", kafka_port + PEER_FIRST + place)
    return [service, peer, *ports]


def ports_of_cluster(
    kafka_port: int, controllers: Sequence[int], brokers: Sequence[int], gcs: int, compactors: int
) -> list[PlannedPort]:
    """Return the ports in the order of `plan`: two per controller, then a metrics port per process."""
    processes = [
        *(("controller", number) for number in controllers),
        *(("broker", number) for number in brokers),
        *(("gc", number) for number in range(gcs)),
        *(("compactor", number) for number in range(compactors)),
    ]
    found = [ports_of_process(kafka_port, role, number) for role, number in processes]
    return [*(port for each in found for port in each[:-1]), *(each[-1] for each in found)]


def choose_ports(host: str, planned: Sequence[PlannedPort], say: Callable[[str], None]) -> list[int]:
    """Return the planned ports, with a free port in place of each port in use.

    Raises:
        CommandError: no port is free.
    """
    taken = {each.port for each in planned}
    chosen = []
    for owner, port in planned:
        use = port
        while not is_listenable(host, use) or (use != port and use in taken):
            (use,) = free_ports(host, 1, first=random_port())
        if use != port:
            say(f"ponor: port {port} on {host} is in use: {owner} uses port {use} until the next start")
            taken.add(use)
        chosen.append(use)
    return chosen
