"""What the cluster service asks of other parts: the balancer, and whoever hears the nodes."""

from __future__ import annotations

from typing import Protocol

from ponor.controller.v1 import cluster_service_pb2 as wire
from ponor_runtime.identity import NodeId


class Balance(Protocol):
    """How load is spread, as the leader knows it."""

    def describe(self) -> wire.BalanceDescription:
        """What it knows, what it would do next, and what it did, with reasons. Asked only while this controller leads."""
        ...


class Heard(Protocol):
    """Which nodes the leader hears. Asked only while this controller leads."""

    def is_away(self, node_id: NodeId) -> bool:
        """Whether the node's session broke and it has no other."""
        ...

    def is_suspected(self, node_id: NodeId) -> bool:
        """Whether the node is probably not there."""
        ...

    def heard_ms_ago(self, node_id: NodeId) -> int | None:
        """How long ago the node was heard; None: not since this controller leads."""
        ...
