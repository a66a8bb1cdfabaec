"""What the cluster service asks of the balancer."""

from __future__ import annotations

from typing import Protocol

from ponor.controller.v1 import cluster_service_pb2 as wire


class Balance(Protocol):
    """How load is spread, as the leader knows it."""

    def describe(self) -> wire.BalanceDescription:
        """What it knows, what it would do next, and what it did, with reasons. Asked only while this controller leads."""
        ...
