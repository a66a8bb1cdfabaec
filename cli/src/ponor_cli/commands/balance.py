"""`ponor cluster balance`: the load of the brokers, the balancer's moves with their reasons, pause
and resume.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import typer
from ponor.controller.v1 import cluster_service_pb2 as wire

from ponor_cli.clients.cluster_address import find_cluster
from ponor_cli.clients.controllers import ask_cluster
from ponor_cli.commands.options import BootstrapOption, DataOption, OutputOption
from ponor_cli.errors import CommandError
from ponor_cli.output import OutputFormat, human_bytes, print_done, print_rows, print_value

Row: TypeAlias = dict[str, Any]
ANSWER_S_MAX: Final = 10.0
BROKER_COLUMNS: Final = ("broker", "partitions", "in", "out", "load", "draining", "reported")
MOVE_COLUMNS: Final = ("when", "topic", "partition", "source", "target", "goal", "reason")
BALANCE_HELP = """Show the load of the brokers; with --explain also the planned and recent moves of
the balancer, with reasons.

\b
Examples:
  ponor cluster balance --explain
  ponor cluster balance --pause        # no moves until --resume; failover and drains continue
"""


def balance(
    explain: Annotated[
        bool, typer.Option("--explain", help="Show planned and recent moves with reasons.")
    ] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Pause the balancer.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the balancer.")] = False,
    data: DataOption = None,
    bootstrap: BootstrapOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """See BALANCE_HELP."""
    if pause + resume + explain > 1:
        raise CommandError("--explain, --pause and --resume are mutually exclusive; give one of them")
    controllers = find_cluster(data, bootstrap).controllers
    if pause or resume:
        ask_cluster(controllers, lambda client: client.pause_balancer(pause, timeout_s=ANSWER_S_MAX))
        print_done(
            "the balancer is paused" if pause else "the balancer is running again", {"paused": pause}, output
        )
        return
    answer = ask_cluster(controllers, lambda client: client.describe_balance(timeout_s=ANSWER_S_MAX))
    facts, brokers, moves = describe_balance(answer)
    if output is OutputFormat.JSON:
        print_value({**facts, "brokers": brokers, **moves}, output)
        return
    print_value(facts, output)
    print()
    print_rows([_for_people(row) for row in brokers], BROKER_COLUMNS, output)
    if explain:
        print()
        _print_moves(moves)


def describe_balance(answer: wire.BalanceDescription) -> tuple[Row, list[Row], dict[str, list[Row]]]:
    """Return the state of the balancer, a row per broker, and the proposed and recent moves."""
    facts = {
        "paused": answer.paused,
        "brokers_wanted": answer.brokers_wanted,
        "holding_back": answer.holding_back or None,
    }
    brokers = [
        {
            "broker": row.node_id,
            "partitions": row.partitions,
            "in_bytes_per_s": row.in_bytes_per_s,
            "out_bytes_per_s": row.out_bytes_per_s,
            "load": row.load_permille / 1000,
            "draining": row.draining,
            "reported_ms_ago": row.reported_ms_ago if row.reported_ms_ago >= 0 else None,
        }
        for row in answer.brokers
    ]
    moves = {
        "proposed": [_move(row) for row in answer.proposed],
        "recent": [_move(row) for row in answer.recent],
    }
    return facts, brokers, moves


def _move(row: wire.ExplainedMove) -> Row:
    return {
        "topic": row.topic,
        "partition": row.partition,
        "source": row.source_id,
        "target": row.target_id,
        "goal": row.goal,
        "reason": row.reason,
        "begun_at_ms": row.begun_at_ms or None,
    }


def _for_people(row: dict[str, Any]) -> Row:
    age_ms = row["reported_ms_ago"]
    return {
        **row,
        "in": f"{human_bytes(row['in_bytes_per_s'])}/s",
        "out": f"{human_bytes(row['out_bytes_per_s'])}/s",
        "load": f"{row['load']:.0%}",
        "draining": "yes" if row["draining"] else "no",
        "reported": None if age_ms is None else f"{age_ms / 1000:.1f} s ago",
    }


def _print_moves(moves: dict[str, list[dict[str, Any]]]) -> None:
    rows = [{**row, "when": "next"} for row in moves["proposed"]]
    rows += [{**row, "when": "done"} for row in moves["recent"]]
    if rows:
        print_rows(rows, MOVE_COLUMNS, OutputFormat.TABLE)
    else:
        print("no move is planned, and none was made recently")
