"""`ponor transaction`: list, describe and abort, with Kafka's own requests."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from ponor_cli.clients.broker_connections import BrokerConnections
from ponor_cli.clients.cluster_address import find_bootstrap
from ponor_cli.clients.open_transactions import OpenTransaction, abort_hanging, find_open
from ponor_cli.clients.transactions import (
    ANY_DURATION,
    DescribedId,
    Filters,
    State,
    describe_id,
    list_ids,
    terminate,
)
from ponor_cli.commands.options import BootstrapOption, DataOption, OutputOption
from ponor_cli.errors import CommandError
from ponor_cli.output import OutputFormat, print_done, print_rows, print_value

LIST_COLUMNS = ("transactional_id", "coordinator", "producer_id", "state")
OPEN_COLUMNS = ("topic", "partition", "start_offset", "producer_id", "idle_s", "transactional_id", "hanging")

IdArgument = Annotated[str, typer.Argument(metavar="ID")]
PartitionOption = Annotated[int | None, typer.Option("--partition", help="Partition of the topic.", min=0)]

transaction_app = typer.Typer(
    help="Show transactions, and abort them.", no_args_is_help=True, add_completion=False
)

STATES_HELP = f"Only this state ({', '.join(State)}); repeatable."
OPEN_HELP = """Show the open transactions of partitions, and which of them are hanging.

A transaction is hanging if no coordinator has the partition in an open transaction of its producer. Readers
of committed records stop before it, and only `ponor transaction abort` ends it.

\b
Examples:
  ponor transaction open --hanging
  ponor transaction open orders --partition 3 --idle-for 60
"""
ABORT_HELP = """Abort the open transaction of a transactional id, or one hanging transaction of a partition.

With ID the coordinator aborts the transaction in all its partitions. This fences the producer: its next
request fails, and it must be restarted.

With --topic, --partition and --start-offset the command ends a hanging transaction in this partition only.
`ponor transaction open --hanging` shows these values.

\b
Examples:
  ponor transaction abort payments-7
  ponor transaction abort --topic orders --partition 3 --start-offset 1042
"""


@transaction_app.command("list")
def transaction_list(
    state: Annotated[
        list[State] | None,
        typer.Option("--state", metavar="STATE", case_sensitive=False, help=STATES_HELP),
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", metavar="N", help="Only this producer; repeatable.", min=0),
    ] = None,
    longer_than: Annotated[
        float | None,
        typer.Option(
            "--longer-than", metavar="SECONDS", help="Only open transactions older than this.", min=0
        ),
    ] = None,
    id_pattern: Annotated[
        str | None,
        typer.Option(
            "--id-pattern", metavar="REGEX", help="Only ids that fully match this RE2 regular expression."
        ),
    ] = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List transactional ids with their coordinator, producer and state."""
    states = state or []
    # With this filter Kafka also lists ids that have no transaction; the states exclude them.
    if longer_than is not None and not states:
        states = [State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT]
    duration_ms = ANY_DURATION if longer_than is None else round(longer_than * 1000)
    filters = Filters(states, producer_id or [], duration_ms, id_pattern)
    with BrokerConnections(find_bootstrap(data, bootstrap)) as brokers:
        found = list_ids(brokers, filters)
    rows = [
        {
            "transactional_id": row.transactional_id,
            "coordinator": row.coordinator_id,
            "producer_id": row.producer_id,
            "state": row.state,
        }
        for row in found
    ]
    print_rows(rows, LIST_COLUMNS, output)


@transaction_app.command("describe")
def transaction_describe(
    transactional_id: IdArgument,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the state of a transactional id, and the partitions of its open transaction."""
    with BrokerConnections(find_bootstrap(data, bootstrap)) as brokers:
        found = describe_id(brokers, transactional_id)
    print_value(_described(found, time.time()), output)


@transaction_app.command("open", help=OPEN_HELP)
def transaction_open(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]")] = None,
    partition: PartitionOption = None,
    hanging: Annotated[bool, typer.Option("--hanging", help="Only hanging transactions.")] = False,
    idle_for: Annotated[
        float,
        typer.Option(
            "--idle-for", metavar="SECONDS", help="Only transactions without a batch for this long.", min=0
        ),
    ] = 0.0,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See OPEN_HELP."""
    if partition is not None and topic is None:
        raise CommandError("--partition needs a topic: ponor transaction open TOPIC --partition N")
    with BrokerConnections(find_bootstrap(data, bootstrap)) as brokers:
        found = find_open(brokers, topic, partition)
    now_s = time.time()
    rows = [
        _opened(each, now_s)
        for each in found
        if now_s - each.updated_ms / 1000 >= idle_for and (each.owner is None or not hanging)
    ]
    print_rows(rows, OPEN_COLUMNS, output)


@transaction_app.command("abort", help=ABORT_HELP)
def transaction_abort(
    transactional_id: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Topic of a hanging transaction.")] = None,
    partition: PartitionOption = None,
    start_offset: Annotated[
        int | None, typer.Option("--start-offset", help="First offset of the hanging transaction.", min=0)
    ] = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See ABORT_HELP."""
    given = [option for option in (topic, partition, start_offset) if option is not None]
    if (transactional_id is None) == (not given):
        raise CommandError("give a transactional id, or --topic, --partition and --start-offset")
    if transactional_id is not None:
        with BrokerConnections(find_bootstrap(data, bootstrap)) as brokers:
            _print_terminated(terminate(brokers, transactional_id), output)
        return
    if topic is None or partition is None or start_offset is None:
        raise CommandError("a hanging transaction needs all of --topic, --partition and --start-offset")
    with BrokerConnections(find_bootstrap(data, bootstrap)) as brokers:
        ended = abort_hanging(brokers, (topic, partition), start_offset)
    print_done(
        f"the transaction of producer {ended.producer_id} at offset {start_offset} of {topic}-{partition} is"
        " aborted",
        {
            "topic": topic,
            "partition": partition,
            "start_offset": start_offset,
            "producer_id": ended.producer_id,
            "producer_epoch": ended.producer_epoch,
        },
        output,
    )


def _print_terminated(before: DescribedId, output: OutputFormat) -> None:
    print_done(
        f"the transaction of {before.transactional_id} is aborted, and its producer is fenced",
        {
            "transactional_id": before.transactional_id,
            "producer_id": before.producer_id,
            "producer_epoch": before.producer_epoch,
            "partitions": _names(before.partitions),
        },
        output,
    )


def _described(found: DescribedId, now_s: float) -> dict[str, object]:
    start_s = None if found.start_ms is None else found.start_ms / 1000
    return {
        "transactional_id": found.transactional_id,
        "coordinator": found.coordinator_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.state,
        "timeout_ms": found.timeout_ms,
        "started": None if start_s is None else _utc(start_s),
        "open_for_s": None if start_s is None else round(max(0.0, now_s - start_s), 1),
        "partitions": _names(found.partitions),
    }


def _opened(found: OpenTransaction, now_s: float) -> dict[str, object]:
    return {
        "topic": found.topic,
        "partition": found.partition,
        "start_offset": found.start_offset,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator_epoch": found.coordinator_epoch,
        "last_batch": _utc(found.updated_ms / 1000),
        "idle_s": max(0, round(now_s - found.updated_ms / 1000)),
        "transactional_id": found.owner,
        "hanging": found.owner is None,
    }


def _utc(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")


def _names(partitions: tuple[tuple[str, int], ...]) -> list[str]:
    return [f"{topic}-{index}" for topic, index in partitions]
