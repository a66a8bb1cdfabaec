"""`ponor group`: list, describe, reset offsets and delete, with Kafka's own requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from ponor_cli.clients.broker_connections import BrokerConnections
from ponor_cli.clients.cluster_address import find_bootstrap
from ponor_cli.clients.group_offsets import (
    EARLIEST,
    LATEST,
    GroupOffset,
    ResetTarget,
    apply_resets,
    known_leaders,
    offsets_of,
    planned,
)
from ponor_cli.clients.groups import (
    DescribedGroup,
    GroupMember,
    GroupType,
    Place,
    delete_group,
    describe_group,
    find_group,
    list_groups,
    require_empty,
)
from ponor_cli.commands.options import BootstrapOption, DataOption, OutputOption
from ponor_cli.errors import CommandError, absent_topic
from ponor_cli.output import OutputFormat, console, print_done, print_rows, print_value

LIST_COLUMNS = ("group", "type", "state", "protocol", "coordinator")
OFFSET_COLUMNS = ("topic", "partition", "offset", "end_offset", "lag", "members")
MEMBER_COLUMNS = ("member_id", "instance_id", "client_id", "host", "epoch", "partitions")
RESET_COLUMNS = ("topic", "partition", "offset", "new_offset")

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP")]

group_app = typer.Typer(
    help="Show and delete groups of consumers, and reset their offsets.",
    no_args_is_help=True,
    add_completion=False,
)

DESCRIBE_HELP = """Show a group: its state, its offsets with their lag, and its members.

The offset of a share group is its start offset: all records before it are processed. Its lag is the number
of records that are not processed yet.
"""
RESET_HELP = """Set the offsets of a group without members. Nothing changes without --execute.

Choose the partitions with --topic or --all-topics, and exactly one new offset. An offset outside of a
partition's log becomes the nearest one inside it.

\b
Examples:
  ponor group reset-offsets billing --topic orders --to-earliest
  ponor group reset-offsets billing --topic orders:0,3 --to-offset 1042 --execute
  ponor group reset-offsets billing --all-topics --to-datetime 2026-03-01T12:00:00+01:00 --execute
  ponor group reset-offsets billing --all-topics --shift-by=-100 --execute
"""


@group_app.command("list")
def group_list(
    kind: Annotated[
        list[GroupType] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            case_sensitive=False,
            help=f"Only this type ({', '.join(GroupType)}); repeatable.",
        ),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", metavar="STATE", help="Only this state, such as Stable or Empty; repeatable."
        ),
    ] = None,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List groups with their type, state and coordinator."""
    with BrokerConnections(find_bootstrap(data, bootstrap)) as brokers:
        found = list_groups(brokers, kind or (), state or ())
    rows = [
        {
            "group": row.group_id,
            "type": row.type,
            "state": row.state,
            "protocol": row.protocol,
            "coordinator": row.coordinator_id,
        }
        for row in found
    ]
    print_rows(rows, LIST_COLUMNS, output)


@group_app.command("describe", help=DESCRIBE_HELP)
def group_describe(
    group_id: GroupArgument,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See DESCRIBE_HELP."""
    with BrokerConnections(find_bootstrap(data, bootstrap)) as brokers:
        group = describe_group(brokers, group_id)
        assigned = {place for member in group.members for place in member.partitions}
        offsets = offsets_of(brokers, group.listed, assigned)
    facts = _facts(group, offsets)
    offset_rows = _offset_rows(offsets, group.members)
    member_rows = [_member(each) for each in group.members]
    if output is OutputFormat.JSON:
        print_value({**facts, "offsets": offset_rows, "members": member_rows}, output)
        return
    print_value({**facts, "members": len(group.members)}, output)
    for row, member in zip(member_rows, group.members, strict=True):
        row["partitions"] = short_names(member.partitions)
    is_streams = group.listed.type == GroupType.STREAMS
    columns = [*MEMBER_COLUMNS[:-1], "tasks"] if is_streams else MEMBER_COLUMNS
    for rows, shown in ((offset_rows, OFFSET_COLUMNS), (member_rows, columns)):
        if rows:
            console().print()
            print_rows(rows, shown, output)


@group_app.command("reset-offsets", help=RESET_HELP)
def group_reset_offsets(
    group_id: GroupArgument,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC[:N,N...]", help="A topic, or some partitions; repeatable."),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All partitions in which the group has offsets.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="The end of the log.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", min=0)] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", metavar="TIME", help="The first record of this time or later (ISO 8601; UTC)."
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Forward by N, or back if N is negative.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Write the new offsets.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the new offsets (default).")] = False,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See RESET_HELP."""
    if execute and dry_run:
        raise CommandError("--execute and --dry-run contradict each other; give one of them")
    if all_topics == bool(topic):
        raise CommandError("choose the partitions: give --topic TOPIC[:N,N...] or --all-topics")
    target = _target(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    with BrokerConnections(find_bootstrap(data, bootstrap)) as brokers:
        group = find_group(brokers, group_id)
        require_empty(group)
        offsets = offsets_of(brokers, group)
        places = [each.place for each in offsets] if all_topics else _places(brokers, topic or [])
        resets = planned(brokers, offsets, places, target)
        if execute:
            apply_resets(brokers, group, resets)
    rows = [
        {
            "topic": each.place[0],
            "partition": each.place[1],
            "offset": each.before,
            "new_offset": each.after,
            "executed": execute,
        }
        for each in resets
    ]
    print_rows(rows, RESET_COLUMNS, output)
    if not execute:
        console(stderr=True).print("nothing was changed; repeat the command with --execute")


@group_app.command("delete")
def group_delete(
    group_id: GroupArgument,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a group without members, with its offsets."""
    with BrokerConnections(find_bootstrap(data, bootstrap)) as brokers:
        group = delete_group(brokers, group_id)
    print_done(f"group {group_id} deleted", {"group": group_id, "type": group.type}, output)


def _target(
    to_earliest: bool, to_latest: bool, to_offset: int | None, to_datetime: str | None, shift_by: int | None
) -> ResetTarget:
    given = [
        *([ResetTarget(timestamp_ms=EARLIEST)] if to_earliest else []),
        *([ResetTarget(timestamp_ms=LATEST)] if to_latest else []),
        *([] if to_offset is None else [ResetTarget(offset=to_offset)]),
        *([] if to_datetime is None else [ResetTarget(timestamp_ms=_wall_ms(to_datetime))]),
        *([] if shift_by is None else [ResetTarget(shift=shift_by)]),
    ]
    if len(given) != 1:
        raise CommandError(
            "choose one new offset: --to-earliest, --to-latest, --to-offset, --to-datetime or --shift-by"
        )
    return given[0]


def _wall_ms(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandError(
            f"--to-datetime {text}: write 2026-03-01T12:00:00 or 2026-03-01T12:00:00+01:00"
        ) from error
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    wall_ms = round(aware.timestamp() * 1000)
    if wall_ms < 0:
        raise CommandError(f"--to-datetime {text}: the time must be after 1970")
    return wall_ms


def _places(brokers: BrokerConnections, topics: Sequence[str]) -> list[Place]:
    """Return the partitions that `--topic` names.

    Raises:
        CommandError: a partition is not a number, or a topic or partition does not exist.
    """
    chosen: set[Place] = set()
    for text in topics:
        name, colon, numbers = text.partition(":")
        existing = set(known_leaders(brokers, [name]))
        if not existing:
            raise absent_topic(name)
        wanted = existing
        if colon:
            if not all(number.isdecimal() for number in numbers.split(",")):
                raise CommandError(f"--topic {text}: write TOPIC, or TOPIC:N,N... with numbers of partitions")
            wanted = {(name, int(number)) for number in numbers.split(",")}
        if absent := sorted(wanted - existing):
            raise CommandError(f"topic {name} has no partition {absent[0][1]}; it has {len(existing)}")
        chosen |= wanted
    return sorted(chosen)


def _facts(group: DescribedGroup, offsets: Iterable[GroupOffset]) -> dict[str, object]:
    lags = [each.lag for each in offsets if each.lag is not None]
    return {
        "group": group.listed.group_id,
        "type": group.listed.type,
        "state": group.state,
        "coordinator": group.listed.coordinator_id,
        "epoch": group.epoch,
        "assignor": group.assignor or None,
        "total_lag": sum(lags) if lags else None,
    }


def _offset_rows(offsets: Iterable[GroupOffset], members: Iterable[GroupMember]) -> list[dict[str, object]]:
    owners: dict[Place, list[str]] = {}
    for member in members:
        for place in member.partitions:
            owners.setdefault(place, []).append(member.member_id)
    return [
        {
            "topic": each.place[0],
            "partition": each.place[1],
            "offset": each.offset,
            "end_offset": each.end_offset,
            "lag": each.lag,
            "members": owners.get(each.place, []),
        }
        for each in offsets
    ]


def short_names(places: Iterable[Place]) -> list[str]:
    """Return one text per topic with ranges of partitions: `orders-0..3,7`. A member may have thousands."""
    numbers: dict[str, list[int]] = {}
    for topic, index in sorted(places):
        numbers.setdefault(topic, []).append(index)
    return [f"{topic}-{_ranges(indexes)}" for topic, indexes in numbers.items()]


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}..{last}" for first, last in runs)


def _member(member: GroupMember) -> dict[str, object]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "epoch": member.epoch,
        "partitions": [f"{topic}-{index}" for topic, index in member.partitions],
        "tasks": list(member.tasks),
    }
