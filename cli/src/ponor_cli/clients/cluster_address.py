"""Find the addresses of a cluster by `--data DIR` (its `cluster.json`) or `--bootstrap HOST:PORT`
(a broker).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import ClusterFile
from ponor_cli.local.directory import ClusterDirectory

CONTROLLERS_CONFIG = "ponor.controllers"
OBJECT_STORE_CONFIG = "ponor.object.store"
"""Read-only broker configs with the controllers' addresses and the object store's URL."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Addresses of a cluster: brokers, controllers, and the URL of the object store."""

    bootstrap: str
    controllers: list[str]
    object_store: str


def find_bootstrap(data: Path | None, bootstrap: str | None) -> str:
    """Return the addresses of the brokers.

    Raises:
        CommandError: both options are given, or the directory holds no cluster.
    """
    if bootstrap is not None:
        if data is not None:
            raise CommandError("--data and --bootstrap both name a cluster; give one of them")
        return bootstrap
    return ClusterFile.read(ClusterDirectory(data or Path("data"))).bootstrap


def find_cluster(data: Path | None, bootstrap: str | None) -> ClusterAddress:
    """Return all addresses of the cluster. With `--bootstrap`, request them from a broker.

    Raises:
        CommandError: as `find_bootstrap`, or the broker is not a Ponor broker.
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
        raise CommandError(f"the broker at {address} does not name its controllers; is it a Ponor broker?")
    return ClusterAddress(address, controllers.split(","), store)


def find_controllers(controllers: str | None, data: Path | None, bootstrap: str | None) -> list[str]:
    """Return the addresses of the controllers: `controllers`, or those that `find_cluster` finds.

    Raises:
        CommandError: as `find_cluster`.
    """
    return controllers.split(",") if controllers else find_cluster(data, bootstrap).controllers
