"""Requests to the controllers: about the cluster, its quorum, and a stop of the whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_metadata.client.cluster_client import ClusterClient
from ponor_metadata.client.leader_calls import NoControllerError
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.system import SystemClock

from ponor_cli.errors import CommandError

T = TypeVar("T")
ANSWER_S_MAX: Final = 30.0
DESCRIBE_S_MAX: Final = 3.0
"""Timeout for commands that show the quorum as additional information."""


def ask_cluster(controllers: Sequence[str], request: Callable[[ClusterClient], Awaitable[T]]) -> T:
    """Send a request about the cluster to the leader.

    Raises:
        CommandError: the leader refuses, or no controller answers.
    """
    return asyncio.run(
        _with_network(lambda network: request(ClusterClient(network, SystemClock(), controllers)))
    )


def ask_quorum(
    controllers: Sequence[str], request: wire.QuorumRequest, *, timeout_s: float = ANSWER_S_MAX
) -> wire.QuorumResponse:
    """Send a request about the quorum to the leader.

    Raises:
        CommandError: the leader refuses, or no controller answers.
    """
    return asyncio.run(ask_quorum_async(controllers, request, timeout_s=timeout_s))


async def ask_quorum_async(
    controllers: Sequence[str], request: wire.QuorumRequest, *, timeout_s: float = ANSWER_S_MAX
) -> wire.QuorumResponse:
    """Send a request about the quorum, as `ask_quorum`, on the running event loop."""
    return await _with_network(
        lambda network: QuorumClient(network, SystemClock(), controllers).ask(request, timeout_s=timeout_s)
    )


def describe_quorum_soon(controllers: Sequence[str]) -> wire.QuorumDescription | None:
    """Return the leader's description of the quorum, or None if no leader answers within `DESCRIBE_S_MAX`."""
    request = wire.QuorumRequest(describe=wire.DescribeQuorum(leader_only=True))
    try:
        return ask_quorum(controllers, request, timeout_s=DESCRIBE_S_MAX).description
    except CommandError:
        return None


async def announce_stop(controllers: Sequence[str], *, ttl_ms: int, timeout_s: float) -> bool:
    """Announce that the whole cluster stops within `ttl_ms`; 0 withdraws the announcement.

    Until then brokers do not drain and no broker fails over. Returns whether the leader committed the
    announcement. A cluster without a leader needs no announcement: it neither drains nor fails over.
    """
    try:
        await _with_network(
            lambda network: ClusterClient(network, SystemClock(), controllers).announce_stop(
                ttl_ms, timeout_s=timeout_s
            )
        )
    except CommandError:
        return False
    return True


async def _with_network(request: Callable[[GrpcNetwork], Awaitable[T]]) -> T:
    network = GrpcNetwork()
    try:
        return await request(network)
    except OperationError as error:
        raise CommandError(error.message) from error
    except NoControllerError as error:
        raise CommandError(f"{error}; is a majority of the controllers running?") from error
    finally:
        await network.close()
