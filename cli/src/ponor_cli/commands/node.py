"""`ponor node`: add, remove, start, stop and kill the processes of a running `ponor up`."""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Annotated

import typer

from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import places_of
from ponor_cli.commands.options import OutputOption
from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import ClusterFile
from ponor_cli.local.control import NEXT_FREE, ControlRequest, send_control
from ponor_cli.local.directory import ClusterDirectory
from ponor_cli.local.process_health import describe_processes
from ponor_cli.local.settings_routing import settings_of
from ponor_cli.output import OutputFormat, print_done, print_rows

DRAIN_TIMEOUT_S = 660.0
"""Longer than the supervisor waits for a broker to drain."""
START_TIMEOUT_S = 600.0
"""A broker that starts may upload a full write-ahead log to a slow store."""
DATA_DEFAULT = Path("data")
PROGRESS_S = 0.5
COLUMNS = ("role", "id", "node_id", "state", "pid", "restarts", "metrics_url")

DataOption = Annotated[Path, typer.Option("--data", metavar="DIR", help="Data directory of the cluster.")]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="controller, broker, gc or compactor")]
NumberArgument = Annotated[int, typer.Argument(metavar="ID", help="number within the role, from 0", min=0)]
SettingOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the new node; repeatable."),
]

ADD_HELP = """Add a broker, gc, compactor or controller to the running cluster. The balancer moves
partitions to a new broker; a new controller joins the quorum as a learner.

\b
Examples:
  ponor node add broker
  ponor node add gc --set poll_interval_ms_min=100
  ponor node add compactor --set compaction_budget_bytes=33554432
  ponor node add controller
"""

node_app = typer.Typer(
    help="Add, remove, stop, start or kill one process of a running `ponor up`.",
    no_args_is_help=True,
    add_completion=False,
)


@node_app.command("list")
def node_list(data: DataOption = DATA_DEFAULT, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show the processes of the cluster."""
    rows = describe_processes(ClusterFile.read(ClusterDirectory(data)))
    print_rows(rows, COLUMNS, output)


@node_app.command("add", help=ADD_HELP)
def node_add(
    role: RoleArgument,
    setting: SettingOption = None,
    data: DataOption = DATA_DEFAULT,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See ADD_HELP."""
    request = ControlRequest("add", role, NEXT_FREE, settings_of(role, setting or []))
    _carry_out(data, request, output)


@node_app.command("remove")
def node_remove(
    role: RoleArgument,
    number: NumberArgument,
    data: DataOption = DATA_DEFAULT,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Stop a node and remove it from the cluster. A controller leaves the quorum first, a broker
    drains first.
    """
    request = ControlRequest("remove", role, number)
    if role == "broker":
        message = _send_with_progress(ClusterDirectory(data), request, DRAIN_TIMEOUT_S)
        print_done(message, {}, output)
    else:
        _carry_out(data, request, output)


@node_app.command("start")
def node_start(
    role: RoleArgument,
    number: NumberArgument,
    data: DataOption = DATA_DEFAULT,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Start a stopped process."""
    _carry_out(data, ControlRequest("start", role, number), output)


@node_app.command("stop")
def node_stop(
    role: RoleArgument,
    number: NumberArgument,
    data: DataOption = DATA_DEFAULT,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Stop a process until `ponor node start`. A broker drains first if other brokers run."""
    request = ControlRequest("stop", role, number)
    message = send_control(ClusterDirectory(data), request, timeout_s=DRAIN_TIMEOUT_S)
    print_done(message, {}, output)


@node_app.command("kill")
def node_kill(
    role: RoleArgument,
    number: NumberArgument,
    data: DataOption = DATA_DEFAULT,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Kill a process with SIGKILL. It is restarted unless the cluster runs with --no-restart."""
    _carry_out(data, ControlRequest("kill", role, number), output)


def _carry_out(data: Path, request: ControlRequest, output: OutputFormat) -> None:
    message = send_control(ClusterDirectory(data), request, timeout_s=START_TIMEOUT_S)
    print_done(message, {}, output)


def _send_with_progress(directory: ClusterDirectory, request: ControlRequest, timeout_s: float) -> str:
    """Send the request, and print to standard error how many partitions the broker still leads.

    Raises:
        CommandError: as `send_control`.
    """
    cluster = ClusterFile.read(directory)
    entry = cluster.process(request.role, request.number)
    own = entry.addresses.get("kafka")
    others = ",".join(address for address in cluster.bootstrap.split(",") if address != own)
    with ThreadPoolExecutor(max_workers=1) as pool:
        answer = pool.submit(send_control, directory, request, timeout_s)
        if others:
            _print_progress(answer, others, entry.node_id)
        return answer.result()


def _print_progress(answer: Future[str], others: str, node_id: int) -> None:
    printed: int | None = None
    while not wait([answer], PROGRESS_S).done:
        left = _led_by(others, node_id)
        if left is not None and left != printed:
            printed = left
            print(f"broker {node_id} still leads {left} partitions", file=sys.stderr, flush=True)


def _led_by(bootstrap: str, node_id: int) -> int | None:
    """Return the number of partitions that the broker leads, or None if no broker answers."""
    try:
        with KafkaClient(bootstrap) as client:
            return sum(place.leader_id == node_id for place in places_of(client, None))
    except CommandError:
        return None
