"""Format an audit as a table for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ponor_spark.jobs.audit.job import Audited
from ponor_spark.jobs.profile.report import human_bytes

if TYPE_CHECKING:
    from rich.console import Console


def print_audit(audited: Sequence[Audited], console: Console) -> None:
    """Format a line for each partition, and the verdict."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        "PARTITION",
        "OFFSETS",
        "BATCHES",
        "CONTROL",
        "ABORTED",
        "HOLES",
        "ROWS",
        "CONSUMER",
        "BYTES",
        "VERDICT",
    ):
        table.add_column(name, justify="left" if name == "VERDICT" else "right")
    for each in audited:
        found = each.findings
        table.add_row(
            found.name,
            f"{each.range.start_offset}…{each.range.end_offset - 1}",
            *(
                f"{count:,}"
                for count in (
                    found.batches,
                    found.control_batches,
                    found.aborted_records,
                    found.holes,
                    found.rows,
                )
            ),
            "-" if each.consumer_rows is None else f"{each.consumer_rows:,}",
            human_bytes(found.size_bytes),
            f"[red]{found.problem_count} problems[/red]" if found.problem_count else "sound",
        )
    console.print(table)
    problems = sum(each.findings.problem_count for each in audited)
    if problems:
        console.print(f"\n{problems} problems", style="bold red")
    elif audited:
        console.print(f"\n{_sound(audited)}", style="bold")
    else:
        console.print("no records in this range", style="bold")


def _sound(audited: Sequence[Audited]) -> str:
    findings = [each.findings for each in audited]
    said = f"{sum(each.rows for each in findings):,} rows of {len(audited)} partitions are sound"
    aborted = sum(each.aborted_records for each in findings)
    control = sum(each.control_batches for each in findings)
    if aborted or control:
        said += f"; {aborted:,} aborted records and {control:,} control batches are not included"
    return said


_FINDINGS: Final = (
    "batches", "control_batches", "aborted_batches", "aborted_records", "holes", "rows", "size_bytes",
    "problem_count", "problems",
)  # fmt: skip


def as_json(audited: Sequence[Audited]) -> dict[str, Any]:
    """Return the audit for JSON output."""
    partitions = [
        {
            "topic": each.range.topic,
            "partition": each.range.partition,
            "start_offset": each.range.start_offset,
            "end_offset": each.range.end_offset,
            **{name: getattr(each.findings, name) for name in _FINDINGS},
            "consumer_rows": each.consumer_rows,
        }
        for each in audited
    ]
    return {"sound": not any(each.findings.problem_count for each in audited), "partitions": partitions}
