"""Identity of one broker: node id, addresses, and the location of its data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

from ponor_metadata.client.joining import ANY_CLUSTER, Membership
from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.identity import NodeId

from ponor_broker.security.mechanisms import SCRAM
from ponor_broker.security.tls import TlsOptions


class ListenerProtocol(Enum):
    """Kafka's security protocol of a listener."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in (ListenerProtocol.SSL, ListenerProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate with SASL."""
        return self in (ListenerProtocol.SASL_PLAINTEXT, ListenerProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class ListenerOptions:
    """A further listener. Metadata names the listener of the same name of each broker to its clients.

    `advertised_host` and `advertised_port` are the address for clients; the bound one if empty or 0. `tls` is
    set if the protocol has TLS.
    """

    name: str
    protocol: ListenerProtocol
    host: str = "127.0.0.1"
    port: int = 0
    advertised_host: str = ""
    advertised_port: int = 0
    tls: TlsOptions | None = None
    mechanisms: tuple[str, ...] = tuple(SCRAM)

    @property
    def client_host(self) -> str:
        """Host name for clients."""
        return self.advertised_host or self.host


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
    listeners: tuple[ListenerOptions, ...] = ()
    """Listeners beside the one at `kafka_host`, which has no TLS and no SASL and is used by other brokers."""

    @property
    def client_host(self) -> str:
        """Host name for clients."""
        return self.advertised_host or self.kafka_host
