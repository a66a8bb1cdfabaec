"""The command line: reads words, calls the commands, prints errors as one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ponor_cli.cluster import cluster_app
from ponor_cli.control import send_control
from ponor_cli.directory import ClusterDirectory
from ponor_cli.errors import CommandError
from ponor_cli.objects import object_app
from ponor_cli.plan import UpOptions
from ponor_cli.settings_routing import route_settings
from ponor_cli.topics import topic_app
from ponor_cli.up import run_up

app = typer.Typer(
    name="ponor",
    help="Ponor: Kafka-compatible streaming whose data lives in object storage.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
node_app = typer.Typer(help="Stop, start or kill one process of a running cluster.", no_args_is_help=True)
app.add_typer(node_app, name="node")
app.add_typer(topic_app, name="topic")
app.add_typer(object_app, name="object")
app.add_typer(cluster_app, name="cluster")

DataOption = Annotated[Path, typer.Option("--data", metavar="DIR", help="Data directory of the cluster.")]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="controller, broker or gc")]
NumberArgument = Annotated[int, typer.Argument(metavar="ID", help="number within the role, from 0")]
DATA_DEFAULT = Path("data")


@app.command()
def up(
    data: DataOption = DATA_DEFAULT,
    controllers: Annotated[int, typer.Option(help="Number of controllers.")] = 1,
    brokers: Annotated[
        int, typer.Option(help="Number of brokers; broker k listens on the Kafka port + k.")
    ] = 1,
    compactors: Annotated[int, typer.Option(help="Number of compactors.")] = 0,
    gcs: Annotated[int, typer.Option(help="Number of garbage collectors.")] = 1,
    kafka_port: Annotated[int, typer.Option(help="Kafka port of broker 0.")] = 9092,
    object_store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="file://DIR or s3://BUCKET/PREFIX?endpoint=URL; default: inside the data directory.",
        ),
    ] = None,
    wal: Annotated[str, typer.Option(help="Write-ahead log: file or object.")] = "file",
    ready_file: Annotated[Path | None, typer.Option(help="Written once clients can produce.")] = None,
    no_restart: Annotated[bool, typer.Option("--no-restart", help="Leave dead processes dead.")] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting of any service; repeatable."),
    ] = None,
) -> None:
    """Run a cluster on this machine until Ctrl-C."""
    options = UpOptions(
        directory=ClusterDirectory(data),
        controllers=controllers,
        brokers=brokers,
        compactors=compactors,
        gcs=gcs,
        kafka_port=kafka_port,
        object_store=object_store,
        wal=wal,
        settings=route_settings(setting or []),
    )
    run_up(options, restart=not no_restart, ready_file=ready_file)


@node_app.command("start")
def node_start(role: RoleArgument, number: NumberArgument, data: DataOption = DATA_DEFAULT) -> None:
    """Bring a stopped process back."""
    print(send_control(ClusterDirectory(data), "start", role, number, timeout_s=600.0))


@node_app.command("stop")
def node_stop(role: RoleArgument, number: NumberArgument, data: DataOption = DATA_DEFAULT) -> None:
    """Stop a process cleanly; it stays down until `ponor node start`."""
    print(send_control(ClusterDirectory(data), "stop", role, number))


@node_app.command("kill")
def node_kill(role: RoleArgument, number: NumberArgument, data: DataOption = DATA_DEFAULT) -> None:
    """Kill a process without warning; it is restarted unless the cluster runs with --no-restart."""
    print(send_control(ClusterDirectory(data), "kill", role, number))


def main() -> None:
    """Entry point of the `ponor` script."""
    try:
        app(standalone_mode=True)
    except CommandError as error:
        print(f"ponor: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(141)
