"""The identity of a node process, and the Hello message that contains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ponor.controller.v1.session_service_pb2 import Hello, Welcome
from ponor.metadata.v1 import records_pb2
from ponor_runtime.identity import NodeId

from ponor_metadata.client.seen_history import SeenHistory
from ponor_metadata.nouns.nodes import NodeRole, WalKind


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The identity of a process.

    `incarnation`: 16 random bytes drawn when the process starts; `wal`: where a broker's write-ahead log is.
    """

    node_id: NodeId
    role: NodeRole
    incarnation: bytes
    cluster_id: str = ""
    kafka_host: str = ""
    kafka_port: int = 0
    listeners: Mapping[str, str] = field(default_factory=dict)
    """Addresses, HOST:PORT by name, of a broker's further listeners."""
    wal: WalKind | None = None
    seen: tuple[SeenHistory, ...] = ()
    """How far nodes of this cluster had seen the log when this process started: their records in the
    store."""

    def hello(self, welcome: Welcome | None, seen: SeenHistory | None = None) -> Hello:
        """Return the first frame of a session.

        Args:
            welcome: the last Welcome of any controller; None before the first.
            seen: how far this process has seen the log.
        """
        known = self.seen if seen is None else (*self.seen, seen)
        return Hello(
            cluster_id=self.cluster_id if welcome is None else welcome.cluster_id,
            node_id=self.node_id,
            role=records_pb2.NodeRole.ValueType(self.role),
            incarnation=self.incarnation,
            kafka_host=self.kafka_host,
            kafka_port=self.kafka_port,
            listeners=self.listeners,
            node_epoch=0 if welcome is None else welcome.node_epoch,
            seen=[each.message() for each in known],
            quorum_incarnation=0 if welcome is None else welcome.quorum_incarnation,
            wal=records_pb2.WalKind.ValueType(0 if self.wal is None else self.wal),
        )
