"""Output of commands: tables for people, JSON for programs (`-o table|json`)."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


class OutputFormat(enum.StrEnum):
    """Values of `-o`."""

    TABLE = "table"
    JSON = "json"


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], output: OutputFormat) -> None:
    """Print rows. A table shows `columns`, JSON shows all fields."""
    if output is OutputFormat.JSON:
        print(json.dumps(list(rows), indent=2))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        present = [row[column] for row in rows if row.get(column) is not None]
        numeric = bool(present) and all(type(each) is int for each in present)
        table.add_column(
            column.upper().replace("_", " "), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*[_cell(row.get(column)) for column in columns])
    console().print(table)


def print_value(value: Mapping[str, Any], output: OutputFormat) -> None:
    """Print one object, a line per field."""
    if output is OutputFormat.JSON:
        print(json.dumps(value, indent=2))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, content in value.items():
        table.add_row(name.replace("_", " "), _cell(content))
    console().print(table)


def print_done(message: str, facts: Mapping[str, Any], output: OutputFormat) -> None:
    """Print the result of an action: a sentence for people, the sentence and `facts` as JSON."""
    if output is OutputFormat.JSON:
        print(json.dumps({"done": True, "message": message, **facts}, indent=2))
    else:
        print(message)


def console(*, stderr: bool = False) -> Console:
    """Return a console. A pipe gets wide lines, so that each row stays on one line."""
    terminal = Console(highlight=False, soft_wrap=False, stderr=stderr)
    return terminal if terminal.is_terminal else Console(highlight=False, width=220, stderr=stderr)


def human_bytes(count: int) -> str:
    """Format a size: 1536 becomes '1.5 KiB'."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def counted(count: int, what: str) -> str:
    """Format a number with its noun: '1 record', '2 records'."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _cell(content: Any) -> str:
    if content is None:
        return "-"
    if isinstance(content, bool):
        return "yes" if content else "no"
    if isinstance(content, list):
        return ", ".join(map(str, content)) or "-"
    return str(content)
