"""`ponor broker recover`: recover the write-ahead log of a dead broker and move its partitions."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from ponor_broker.dead_node import RescueReport, rescue
from ponor_journal.errors import JournalIdentityError
from ponor_metadata.client.errors import (
    MetadataLagError,
    NodeFencedError,
    SessionClosedError,
    WrongClusterError,
)
from ponor_metadata.nouns.nodes import NODES, NodeRole, NodeRow, WalKind
from ponor_rpc.errors import OperationError
from ponor_runtime.object_store import ObjectStoreError
from ponor_runtime.settings import SettingError, load
from s3stream.errors import S3StreamError
from s3stream.settings import StorageSettings
from s3stream.stores.open_store import open_object_store

from ponor_cli.clients.cluster_address import ClusterAddress, find_cluster
from ponor_cli.clients.image_reader import read_image
from ponor_cli.commands.options import BootstrapOption, DataOption, OutputOption
from ponor_cli.errors import CommandError
from ponor_cli.local.command_runtime import command_runtime
from ponor_cli.output import OutputFormat, print_rows, print_value

CONNECT_S_MAX: Final = 2.0
LOSS_COLUMNS: Final = ("topic", "partition", "kind", "stream_id", "offset")

_REMEDIABLE: Final = (
    JournalIdentityError,
    MetadataLagError,
    NodeFencedError,
    ObjectStoreError,
    OperationError,
    S3StreamError,
    SessionClosedError,
    WrongClusterError,
)

broker_app = typer.Typer(help="Recover a dead broker.", no_args_is_help=True, add_completion=False)

RECOVER_HELP = """Recover the write-ahead log of a broker that will not start again, and move its
partitions to the other brokers.

Only for brokers with a log on disk: the log's directory must be on this machine. It holds the only
copy of the records that the broker acknowledged and did not upload.
Other brokers recover logs in the object store (--wal object) without a command.

With --accept-loss the recovery continues without the log, or with a damaged one. It closes the
streams at the end of their committed data. ACKNOWLEDGED RECORDS AFTER THIS END
ARE LOST; the command prints their offsets.

\b
Examples:
  ponor broker recover 65537 --wal /mnt/dead/broker-1/wal
  ponor broker recover 65537 --accept-loss --bootstrap 10.0.0.4:9092
"""


@broker_app.callback()
def broker() -> None:
    """Recover a dead broker."""


@broker_app.command("recover", help=RECOVER_HELP)
def recover(
    node_id: Annotated[int, typer.Argument(metavar="NODE_ID", help="node id of the broker", min=0)],
    wal: Annotated[
        Path | None, typer.Option("--wal", metavar="DIR", help="Directory of the broker's write-ahead log.")
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Continue without the log, or with a damaged one.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A storage setting of the dead broker; repeatable."),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Maximum duration of the moves, in seconds.")
    ] = 120.0,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See RECOVER_HELP."""
    _check_log(wal, accept_loss=accept_loss)
    storage = _storage_settings(settings or [])
    cluster = find_cluster(data, bootstrap)
    dead = _dead_node(cluster, node_id)
    report = asyncio.run(
        _rescue(cluster, storage, dead, wal, accept_loss=accept_loss, ms_max=int(timeout_s * 1000))
    )
    _print(node_id, report, output)
    if report.partitions_left:
        raise typer.Exit(1)


def _check_log(wal: Path | None, *, accept_loss: bool) -> None:
    if wal is None and not accept_loss:
        raise CommandError(
            "--wal DIR is missing; if the log is lost, read `ponor broker recover --help` and add"
            " --accept-loss"
        )
    if wal is not None and not wal.is_dir():
        raise CommandError(f"--wal {wal}: the directory does not exist")
    if wal is not None and not any(wal.iterdir()):
        raise CommandError(f"--wal {wal}: the directory is empty; a broker's log is in DIR/broker-N/wal")


def _storage_settings(pairs: list[str]) -> StorageSettings:
    named = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise CommandError(f"--set {pair}: write NAME=VALUE")
        named[name] = value
    try:
        return load(StorageSettings, named)
    except SettingError as error:
        raise CommandError(str(error)) from error


def _dead_node(cluster: ClusterAddress, node_id: int) -> NodeRow:
    """Return the node's metadata row.

    Raises:
        CommandError: the node is not a broker, needs no recovery, or is not dead.
    """
    image = asyncio.run(read_image(cluster.controllers))
    row = next((row for row in image[NODES] if row.node_id == node_id), None)
    if row is None or row.role is not NodeRole.BROKER:
        known = ", ".join(str(row.node_id) for row in image[NODES] if row.role is NodeRole.BROKER)
        raise CommandError(f"node {node_id} is not a broker of this cluster; the brokers are {known}")
    if row.wal is not WalKind.FILE:
        raise CommandError(
            f"node {node_id} has its write-ahead log in the object store: the other brokers recover it"
        )
    if _accepts_connections(row.kafka_host, row.kafka_port):
        raise CommandError(
            f"node {node_id} is not dead: {row.kafka_host}:{row.kafka_port} accepts connections;"
            " stop it first"
        )
    return row


def _accepts_connections(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S_MAX):
            return True
    except OSError:
        return False


async def _rescue(
    cluster: ClusterAddress,
    settings: StorageSettings,
    dead: NodeRow,
    wal: Path | None,
    *,
    accept_loss: bool,
    ms_max: int,
) -> RescueReport:
    try:
        async with command_runtime() as runtime:
            store = await open_object_store(cluster.object_store, runtime=runtime, environment=os.environ)
            try:
                return await rescue(
                    runtime,
                    settings,
                    dead,
                    controllers=tuple(cluster.controllers),
                    store=store,
                    wal=None if wal is None else wal.absolute(),
                    accept_loss=accept_loss,
                    ms_max=ms_max,
                )
            finally:
                await store.close()
    except BlockingIOError as error:
        raise CommandError(f"a process uses {wal}: node {dead.node_id} is not dead; stop it first") from error
    except _REMEDIABLE as error:
        raise CommandError(f"node {dead.node_id} was not recovered: {error}") from error


def _print(node_id: int, report: RescueReport, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_value(_as_value(node_id, report), output)
        return
    if report.recovered is not None:
        print(
            f"node {node_id}: {report.recovered.records} records, {report.recovered.bytes} bytes"
            " uploaded from its"
            f" write-ahead log, {report.recovered.streams} streams closed; nothing is lost"
        )
    else:
        _print_loss(node_id, report)
    if report.partitions_left:
        print(
            f"{report.partitions_left} partitions are still led by node {node_id}: no other broker"
            " opened them; start a broker and run the command again"
        )


def _print_loss(node_id: int, report: RescueReport) -> None:
    print(f"node {node_id}: THE WRITE-AHEAD LOG WAS NOT USED: {report.reason}")
    if not report.open_ends:
        print("The node had no open stream: nothing is lost.")
        return
    print(f"LOST, if acknowledged: all records from these offsets on, in {len(report.open_ends)} streams")
    print_rows([asdict(end) for end in report.open_ends], LOSS_COLUMNS, OutputFormat.TABLE)


def _as_value(node_id: int, report: RescueReport) -> dict[str, Any]:
    return {
        "node_id": node_id,
        "recovered": None if report.recovered is None else asdict(report.recovered),
        "reason": report.reason,
        "open_ends": [asdict(end) for end in report.open_ends],
        "partitions_left": report.partitions_left,
    }
