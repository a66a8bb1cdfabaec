"""Tells the controllers that the whole cluster is about to be stopped, so that its brokers do not drain to one another and nobody fails over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer
from ponor_metadata.cluster_client import ClusterClient
from ponor_metadata.questions import NoControllerError
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.system import SystemClock

from ponor_cli.cluster_questions import ask_cluster
from ponor_cli.finding import (
    BootstrapOption,
    ControllersOption,
    DataOption,
    OutputOption,
    find_controllers,
)
from ponor_cli.output import OutputFormat, print_done

ANNOUNCED_MS: Final = 60_000
ANNOUNCE_S_MAX: Final = 1.0
TAKE_BACK_S_MAX: Final = 5.0
ANSWER_S_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 600
ANNOUNCE_HELP = """Tell the controllers that the whole cluster is about to be stopped by somebody else (`ponor up` does it by itself).

For so long, brokers that are told to stop do not drain to one another, and nobody fails over. --take-back ends it.

\b
Examples:
  ponor cluster announce-stop --seconds 120 --bootstrap broker:9092
  ponor cluster announce-stop --take-back --controllers controller-0:9090,controller-1:9090
"""


async def announce_stop(controllers: Sequence[str], *, ttl_ms: int, timeout_s: float) -> bool:
    """Whether the leader has committed it. A cluster without a leader is stopped all the same: nobody can drain or fail over in it."""
    network = GrpcNetwork()
    try:
        client = ClusterClient(network, SystemClock(), controllers)
        await client.announce_stop(ttl_ms, timeout_s=timeout_s)
    except (OperationError, NoControllerError):
        return False
    finally:
        await network.close()
    return True


def announce(
    seconds: Annotated[int, typer.Option(help="For how long.", min=1, max=STOP_SECONDS_MAX)] = ANNOUNCED_MS
    // 1000,
    take_back: Annotated[bool, typer.Option("--take-back", help="The cluster goes on after all.")] = False,
    controllers: ControllersOption = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See ANNOUNCE_HELP."""
    known = find_controllers(controllers, data, bootstrap)
    ttl_ms = 0 if take_back else seconds * 1000
    ask_cluster(known, lambda client: client.announce_stop(ttl_ms, timeout_s=ANSWER_S_MAX))
    message = (
        "the announcement is taken back" if take_back else f"the stop is announced for {seconds} seconds"
    )
    print_done(message, {"ttl_ms": ttl_ms}, output)
