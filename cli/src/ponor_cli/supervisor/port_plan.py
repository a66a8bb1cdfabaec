"""Ports of a local cluster: all follow from the Kafka port, so that they are the same at every start and Prometheus can be configured.

One block of `BLOCK` ports from the Kafka port on: brokers, then controllers (one port for nodes and tools, one for other controllers), then the metrics of every process. A port that somebody else
uses is replaced by a free one for this start, and a line says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ponor_cli.local.ports import anywhere, free_ports, is_listenable

BLOCK: Final = 90
SERVICE_FIRST: Final = 20
PEER_FIRST: Final = 30
METRICS_FIRST: Final = {"controller": 40, "broker": 50, "gc": 66, "compactor": 82}
CONTROLLER_PORTS: Final = 10
"""Numbers of controllers never come back, so they share ports: of so many in a row, each has its own."""


class PlannedPort(NamedTuple):
    """A port and who listens on it."""

    owner: str
    port: int


def ports_of_process(kafka_port: int, role: str, number: int) -> list[PlannedPort]:
    """Ports of one process beside its Kafka port, the metrics port last."""
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
    """Ports in the order in which `plan` takes them: two for each controller, then one metrics port per process."""
    processes = [
        *(("controller", number) for number in controllers),
        *(("broker", number) for number in brokers),
        *(("gc", number) for number in range(gcs)),
        *(("compactor", number) for number in range(compactors)),
    ]
    found = [ports_of_process(kafka_port, role, number) for role, number in processes]
    return [*(port for each in found for port in each[:-1]), *(each[-1] for each in found)]


def choose_ports(host: str, planned: Sequence[PlannedPort], say: Callable[[str], None]) -> list[int]:
    """The planned ports; another one for each on which somebody listens.

    Raises:
        CommandError: there is no free port.
    """
    taken = {each.port for each in planned}
    chosen = []
    for owner, port in planned:
        use = port
        while not is_listenable(host, use) or (use != port and use in taken):
            (use,) = free_ports(host, 1, first=anywhere())
        if use != port:
            say(f"ponor: port {port} on {host} is in use: {owner} has port {use} until the next start")
            taken.add(use)
        chosen.append(use)
    return chosen
