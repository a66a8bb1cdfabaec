"""How a command finds the cluster: by `--data DIR` (cluster.json) or by `--bootstrap HOST:PORT` (a broker)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import ClusterFile
from ponor_cli.local.directory import ClusterDirectory

CONTROLLERS_CONFIG = "ponor.controllers"
OBJECT_STORE_CONFIG = "ponor.object.store"
"""Read-only broker configs by which a broker tells tools where the cluster's other parts are."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where a cluster is, as one of the two options said."""

    bootstrap: str
    controllers: list[str]
    object_store: str


def find_bootstrap(data: Path | None, bootstrap: str | None) -> str:
    """The address of a broker.

    Raises:
        CommandError: both options, or no cluster there.
    """
    if bootstrap is not None:
        if data is not None:
            raise CommandError("--data and --bootstrap name a cluster each; give one of them")
        return bootstrap
    return ClusterFile.read(ClusterDirectory(data or Path("data"))).bootstrap


def find_cluster(data: Path | None, bootstrap: str | None) -> ClusterAddress:
    """Controllers and object store of the cluster, asked of a broker when only that is known.

    Raises:
        CommandError: both options, no cluster there, or the broker is not one of Ponor's.
    """
    address = find_bootstrap(data, bootstrap)
    if bootstrap is None:
        cluster = ClusterFile.read(ClusterDirectory(data or Path("data")))
        return ClusterAddress(address, cluster.controllers, cluster.object_store)
    with KafkaClient(address) as client:
        configs = client.broker_configs([CONTROLLERS_CONFIG, OBJECT_STORE_CONFIG])
    controllers = configs.get(CONTROLLERS_CONFIG)
    store = configs.get(OBJECT_STORE_CONFIG)
    if not controllers or not store:
        raise CommandError(
            f"the broker at {address} does not say where its controllers are; is it a Ponor broker?"
        )
    return ClusterAddress(address, controllers.split(","), store)


def find_controllers(controllers: str | None, data: Path | None, bootstrap: str | None) -> list[str]:
    """Addresses of the controllers: given, or found as `find_cluster` finds them.

    Raises:
        CommandError: as `find_cluster`.
    """
    return controllers.split(",") if controllers else find_cluster(data, bootstrap).controllers
