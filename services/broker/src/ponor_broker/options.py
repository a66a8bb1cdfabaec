"""What differs from one broker to another: who it is, where it listens, where its log lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from ponor_metadata.client.joining import ANY_CLUSTER, Membership
from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.identity import NodeId


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """`advertised_host` is what clients are told, the host that is bound if empty.

    `node_id` below 2^16 is a number, which the cluster's ordinal completes. `data` is the directory of a file write-ahead log; with a log in the object store nothing is ever written there.
    """

    node_id: NodeId
    data: PurePath
    controllers: tuple[str, ...]
    kafka_host: str = "127.0.0.1"
    kafka_port: int = 0
    advertised_host: str = ""
    object_store: str = ""
    """The store's URL as tools may read it; the store itself is given to `run`."""
    wal: WalKind = WalKind.FILE
    membership: Membership = ANY_CLUSTER
    """The cluster that this broker expects."""

    @property
    def client_host(self) -> str:
        """What clients are told."""
        return self.advertised_host or self.kafka_host
