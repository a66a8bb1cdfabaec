"""`ponor cluster`: identity, nodes and contents of the cluster, and the announcement of its stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.cluster import CLUSTERS, TENANTS
from ponor_metadata.nouns.nodes import NO_NODE, NODES, NodeRole
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_metadata.nouns.streams import STREAMS
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, TOPICS
from ponor_metadata.nouns.wals import WALS
from ponor_runtime.host_port import join_host_port
from ponor_runtime.identity import DEFAULT_TENANT

from ponor_cli.clients.cluster_address import ClusterAddress, find_cluster, find_controllers
from ponor_cli.clients.controllers import ANSWER_S_MAX, ask_cluster
from ponor_cli.clients.image_reader import image_of
from ponor_cli.commands.balance import BALANCE_HELP, balance
from ponor_cli.commands.cluster_nodes import LIVE_STATES, UNREGISTER_HELP, describe_nodes, unregister
from ponor_cli.commands.options import BootstrapOption, ControllersOption, DataOption, OutputOption
from ponor_cli.commands.quorum import quorum_app
from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import ClusterFile
from ponor_cli.local.directory import ClusterDirectory
from ponor_cli.local.process_health import describe_processes
from ponor_cli.output import OutputFormat, human_bytes, print_done, print_rows, print_value

BROKER_COLUMNS: Final = (
    "broker",
    "address",
    "state",
    "wal",
    "partitions",
    "moving_away",
    "moving_in",
    "recovering",
)

NODE_COLUMNS: Final = ("role", "node_id", "state")
PROCESS_COLUMNS: Final = ("role", "id", "node_id", "state", "pid", "restarts", "metrics_url")
LEADER: Final = "live, leader"
STOP_SECONDS_DEFAULT: Final = 60
STOP_SECONDS_MAX: Final = 600

cluster_app = typer.Typer(help="Show and change the cluster.", no_args_is_help=True, add_completion=False)
cluster_app.add_typer(quorum_app, name="quorum")
cluster_app.command("balance", help=BALANCE_HELP)(balance)
cluster_app.command("unregister", help=UNREGISTER_HELP)(unregister)


@cluster_app.command("info")
def info(
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    controllers: ControllersOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show identity, processes and contents of the cluster. Exit code 1 when no broker is live."""
    cluster = ClusterAddress("", controllers.split(","), "") if controllers else find_cluster(data, bootstrap)
    image = image_of(cluster)
    nodes = describe_nodes(cluster.controllers)
    leader = next((row["node_id"] for row in nodes if row["state"] == LEADER), None)
    facts = {**describe_cluster(cluster, image), "leader": leader}
    brokers = describe_brokers(image, {row["node_id"]: row["state"] for row in nodes})
    here = None if bootstrap or controllers else ClusterDirectory(data or Path("data"))
    processes = [] if here is None else describe_processes(ClusterFile.read(here))
    if output is OutputFormat.JSON:
        print_value({**facts, "brokers": brokers, "nodes": nodes, "processes": processes}, output)
    else:
        print_value({**facts, "object_bytes": human_bytes(facts["object_bytes"])}, output)
        for rows, columns in ((brokers, BROKER_COLUMNS), (nodes, NODE_COLUMNS), (processes, PROCESS_COLUMNS)):
            if rows:
                print()
                print_rows(rows, columns, output)
    if not any(row["state"] in LIVE_STATES for row in brokers):
        raise CommandError("no broker is live: clients cannot connect; `ponor node list` shows the processes")


ANNOUNCE_HELP = """Announce that another supervisor stops the whole cluster (`ponor up` announces
its own stop).

During the announced time a stopping broker does not move its partitions to other brokers, and no
broker fails over. --cancel withdraws the announcement.

\b
Examples:
  ponor cluster announce-stop --seconds 120 --bootstrap broker:9092
  ponor cluster announce-stop --cancel --controllers controller-0:9090,controller-1:9090
"""


@cluster_app.command("announce-stop", help=ANNOUNCE_HELP)
def announce(
    seconds: Annotated[
        int, typer.Option(help="How long the stop may take.", min=1, max=STOP_SECONDS_MAX)
    ] = STOP_SECONDS_DEFAULT,
    cancel: Annotated[bool, typer.Option("--cancel", help="Withdraw the announcement.")] = False,
    controllers: ControllersOption = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See ANNOUNCE_HELP."""
    known = find_controllers(controllers, data, bootstrap)
    ttl_ms = 0 if cancel else seconds * 1000
    ask_cluster(known, lambda client: client.announce_stop(ttl_ms, timeout_s=ANSWER_S_MAX))
    message = "the announcement is withdrawn" if cancel else f"the stop is announced for {seconds} seconds"
    print_done(message, {"ttl_ms": ttl_ms}, output)


def describe_brokers(image: MetadataImage, states: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return a row per registered broker. `moving_away` and `moving_in` count its current moves;
    `states` maps node ids to states.
    """
    led = Counter(row.leader_id for row in image[PARTITIONS])
    away = Counter(row.source_id for row in image[MOVES])
    incoming = Counter(row.target_id for row in image[MOVES])
    recovering = Counter(row.recoverer_id for row in image[WALS] if row.recoverer_id != NO_NODE)
    return [
        {
            "broker": row.node_id,
            "address": join_host_port(row.kafka_host, row.kafka_port),
            "state": states.get(row.node_id, "left or fenced" if row.fenced else "just registered"),
            "wal": row.wal.name.lower(),
            "partitions": led[row.node_id],
            "moving_away": away[row.node_id],
            "moving_in": incoming[row.node_id],
            "recovering": recovering[row.node_id],
        }
        for row in sorted(image[NODES], key=lambda row: row.node_id)
        if row.role is NodeRole.BROKER
    ]


def describe_cluster(cluster: ClusterAddress, image: MetadataImage) -> dict[str, Any]:
    """Return identity and contents of the cluster."""
    identity = next(iter(image[CLUSTERS]), None)
    tenant = image[TENANTS].get(DEFAULT_TENANT)
    states = [row.state for row in image[OBJECTS]]
    return {
        "bootstrap": cluster.bootstrap or None,
        "controllers": cluster.controllers,
        "object_store": cluster.object_store or None,
        "cluster_id": identity.cluster_id if identity else None,
        "cluster_ordinal": identity.cluster_ordinal if identity else None,
        "namespace": identity.namespace if identity else None,
        "kafka_cluster_id": tenant.cluster_id if tenant else None,
        "log_index": image.index,
        "nodes": len(image[NODES]),
        "topics": len(image[TOPICS]),
        "partitions": len(image[PARTITIONS]),
        "streams": len(image[STREAMS]),
        "objects_committed": states.count(ObjectState.COMMITTED),
        "objects_prepared": states.count(ObjectState.PREPARED),
        "objects_destroyed": states.count(ObjectState.DESTROYED),
        "object_bytes": sum(row.size_bytes for row in image[OBJECTS] if row.state is ObjectState.COMMITTED),
    }
