"""Paths of the services' methods, which proto/ defines. Each method is one bidirectional stream of frames."""

from __future__ import annotations

from typing import Final

SESSION: Final = "/ponor.controller.v1.SessionService/Session"
"""Frames `SessionRequest` / `SessionResponse`."""

SUBSCRIBE: Final = "/ponor.controller.v1.SubscriptionService/Subscribe"
"""Frames `SubscribeRequest` / `SubscribeResponse`."""

PEER: Final = "/ponor.controller.v1.PeerService/Exchange"
"""Frames between controllers, on a separate port."""

QUORUM: Final = "/ponor.controller.v1.QuorumService/Quorum"
"""Frames `QuorumRequest` / `QuorumResponse`."""

CLUSTER: Final = "/ponor.controller.v1.ClusterService/Cluster"
"""Frames `ClusterRequest` / `ClusterResponse`."""

HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
"""gRPC health checking protocol; a unary call, not a stream of frames."""


def service_name(method: str) -> str:
    """Return the gRPC service of a method path."""
    return method.split("/")[1]
