"""Puts a question to the controllers about the cluster as a whole, on an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ponor_metadata.cluster_client import ClusterClient
from ponor_metadata.questions import NoControllerError
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.system import SystemClock

from ponor_cli.errors import CommandError

T = TypeVar("T")


def ask_cluster(controllers: Sequence[str], question: Callable[[ClusterClient], Awaitable[T]]) -> T:
    """The leader's answer.

    Raises:
        CommandError: refused, or no controller answers.
    """
    return asyncio.run(_ask(controllers, question))


async def _ask(controllers: Sequence[str], question: Callable[[ClusterClient], Awaitable[T]]) -> T:
    network = GrpcNetwork()
    try:
        return await question(ClusterClient(network, SystemClock(), controllers))
    except OperationError as error:
        raise CommandError(error.message) from error
    except NoControllerError as error:
        raise CommandError(f"{error}; is a majority of the controllers running?") from error
    finally:
        await network.close()
