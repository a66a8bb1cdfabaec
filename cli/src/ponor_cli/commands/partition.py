"""`ponor partition`: list, move and cancel, with Kafka's own requests."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ponor_cli.clients.cluster_address import find_bootstrap
from ponor_cli.clients.kafka_client import KafkaClient
from ponor_cli.clients.reassignments import PartitionPlace, follow, places_of, request_moves
from ponor_cli.commands.options import BootstrapOption, DataOption, OutputOption
from ponor_cli.errors import CommandError
from ponor_cli.local.cluster_file import ClusterFile
from ponor_cli.local.directory import ClusterDirectory
from ponor_cli.output import OutputFormat, print_done, print_rows

COLUMNS = ("topic", "partition", "leader", "leader_epoch", "moves_to")

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]
PartitionsArgument = Annotated[list[int], typer.Argument(metavar="PARTITION...", min=0)]

partition_app = typer.Typer(
    help="Show the leaders of partitions, and move partitions.", no_args_is_help=True, add_completion=False
)

MOVE_HELP = """Move partitions to another broker. No data is copied: clients see a pause of less than a
second, and no error.

BROKER is a node id (`ponor cluster info` shows them), or a broker number of this `ponor up`.

\b
Examples:
  ponor partition move orders 3 --to 1 --wait
  ponor partition move orders 0 1 2 3 --to 65537
"""


@partition_app.command("list")
def partition_list(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]")] = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the leader of each partition, and the target of a current move."""
    with KafkaClient(find_bootstrap(data, bootstrap)) as client:
        places = places_of(client, None if topic is None else [topic])
    print_rows([_row(place) for place in places], COLUMNS, output)


@partition_app.command("move", help=MOVE_HELP)
def partition_move(
    topic: TopicArgument,
    partitions: PartitionsArgument,
    to: Annotated[int, typer.Option("--to", metavar="BROKER", help="Target broker.", min=0)],
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end of the moves; print progress.")
    ] = False,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See MOVE_HELP."""
    with KafkaClient(find_bootstrap(data, bootstrap)) as client:
        target_id = _node_id(client, to, data, bootstrap)
        there = already_led(_chosen(client, topic, partitions), target_id)
        partitions = [number for number in partitions if number not in there]
        said = [already_there(topic, there, target_id)] if there else []
        facts: dict[str, object] = {"topic": topic, "partitions": partitions, "already_there": there}
        if not partitions:
            print_done(said[0], {**facts, "leader": target_id, "took_ms": 0}, output)
            return
        began = time.monotonic()
        request_moves(client, topic, partitions, target_id)
        if not wait:
            said.append(
                f"{_names(topic, partitions)} moving to {target_id}; `ponor partition list {topic}`"
                " shows the progress"
            )
            print_done("\n".join(said), {**facts, "target": target_id}, output)
            return
        _await_arrival(client, topic, partitions, target_id, output)
        took_ms = round((time.monotonic() - began) * 1000)
    said.append(f"{_names(topic, partitions)} led by {target_id} after {took_ms} ms")
    print_done("\n".join(said), {**facts, "leader": target_id, "took_ms": took_ms}, output)


@partition_app.command("cancel")
def partition_cancel(
    topic: TopicArgument,
    partitions: PartitionsArgument,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Cancel current moves; the partitions stay at their leaders."""
    with KafkaClient(find_bootstrap(data, bootstrap)) as client:
        request_moves(client, topic, partitions, None)
    facts = {"topic": topic, "partitions": partitions}
    print_done(f"moves cancelled: {_names(topic, partitions)}", facts, output)


def already_led(places: Sequence[PartitionPlace], target_id: int) -> list[int]:
    """Return the partitions that the broker leads and that are not moving away."""
    return [place.partition for place in places if place.leader_id == target_id and place.target_id is None]


def already_there(topic: str, partitions: list[int], target_id: int) -> str:
    """Return the message for partitions that the target leads already. No move begins and no
    cool-down starts, so the balancer may move them at any time.
    """
    return (
        f"{_names(topic, partitions)} already led by {target_id}: nothing to move; "
        "the balancer may move them later (`ponor cluster balance --pause` stops it)"
    )


def _await_arrival(
    client: KafkaClient, topic: str, partitions: list[int], target_id: int, output: OutputFormat
) -> None:
    for moving in follow(client, topic, partitions):
        if moving and output is OutputFormat.TABLE:
            print(f"moving: {_names(topic, moving)}", file=sys.stderr, flush=True)
    elsewhere = [row for row in _chosen(client, topic, partitions) if row.leader_id != target_id]
    if elsewhere:
        names = ", ".join(f"{topic}-{row.partition} (led by {row.leader_id})" for row in elsewhere)
        raise CommandError(
            f"not moved to {target_id}: {names}; the move was cancelled or replaced by another one"
        )


def _chosen(client: KafkaClient, topic: str, partitions: list[int]) -> list[PartitionPlace]:
    """Return the named partitions.

    Raises:
        CommandError: a partition does not exist, or has several replicas.
    """
    known = {place.partition: place for place in places_of(client, [topic])}
    for number in partitions:
        if number not in known:
            raise CommandError(
                f"topic {topic} has no partition {number}; it has partitions 0 to {len(known) - 1}"
            )
        if len(known[number].replicas) > 1 and known[number].target_id is None:
            raise CommandError(
                f"{topic}-{number} has replicas {list(known[number].replicas)}; this command moves"
                " partitions with one replica only, "
                "use kafka-reassign-partitions.sh"
            )
    return [known[number] for number in partitions]


def _node_id(client: KafkaClient, broker: int, data: Path | None, bootstrap: str | None) -> int:
    """Return the node id of a broker, given as node id or as the number of a local broker."""
    live = sorted(row.node_id for row in client.metadata([]).brokers)
    if broker in live:
        return broker
    if bootstrap is None:
        for entry in ClusterFile.read(ClusterDirectory(data or Path("data"))).processes:
            if entry.role == "broker" and entry.id == broker:
                return entry.node_id
    raise CommandError(f"--to {broker}: no such broker; the live brokers are {', '.join(map(str, live))}")


def _row(place: PartitionPlace) -> dict[str, object]:
    row = asdict(place)
    return {**row, "leader": row.pop("leader_id"), "moves_to": row.pop("target_id")}


def _names(topic: str, partitions: list[int]) -> str:
    return ", ".join(f"{topic}-{number}" for number in partitions)
