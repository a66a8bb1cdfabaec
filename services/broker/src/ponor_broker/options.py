"""Identity of one broker: node id, addresses, and the location of its data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from ponor_metadata.client.joining import ANY_CLUSTER, Membership
from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.identity import NodeId


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Values that differ from one broker to another.

    `advertised_host` is the host name for clients; the bound host if empty. A `node_id` below 2^16 gets the
    cluster's ordinal in its upper bits. `data` is the directory of a file write-ahead log; with a log in the
    object store, the broker writes nothing there.
    """

    node_id: NodeId
    data: PurePath
    controllers: tuple[str, ...]
    kafka_host: str = "127.0.0.1"
    kafka_port: int = 0
    advertised_host: str = ""
    object_store: str = ""
    """URL of the store, shown to tools; the store itself is an argument of `run`."""
    wal: WalKind = WalKind.FILE
    membership: Membership = ANY_CLUSTER
    """The expected cluster."""

    @property
    def client_host(self) -> str:
        """Host name for clients."""
        return self.advertised_host or self.kafka_host
