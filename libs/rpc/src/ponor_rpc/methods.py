"""Paths of the methods that services serve; each is one bidirectional stream of frames. See proto/ for the frames."""

from __future__ import annotations

from typing import Final

SESSION: Final = "/ponor.controller.v1.SessionService/Session"
"""Frames `SessionRequest` / `SessionResponse`."""

SUBSCRIBE: Final = "/ponor.controller.v1.SubscriptionService/Subscribe"
"""Frames `SubscribeRequest` / `SubscribeResponse`."""

PEER: Final = "/ponor.controller.v1.PeerService/Exchange"
"""Frames between controllers, on a port of their own."""

QUORUM: Final = "/ponor.controller.v1.QuorumService/Quorum"
"""Frames `QuorumRequest` / `QuorumResponse`."""

CLUSTER: Final = "/ponor.controller.v1.ClusterService/Cluster"
"""Frames `ClusterRequest` / `ClusterResponse`."""

HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
"""gRPC's health checking protocol; a single call, not a stream of frames."""


def service_name(method: str) -> str:
    """The gRPC service to which the path of a method belongs."""
    return method.split("/")[1]
