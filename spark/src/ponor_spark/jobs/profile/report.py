"""Format a profile: readable numbers, and the table for a terminal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from ponor_spark.jobs.profile.topic_profile import TopicProfile

if TYPE_CHECKING:
    from rich.console import Console

ROWS_MAX: Final = 64
"""Partitions shown in the terminal; the JSON has all."""
BARS: Final = " ▁▂▃▄▅▆▇█"


def human_bytes(count: float) -> str:
    """1536 → '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def human_count(count: float) -> str:
    """1234567 → '1.23 M'."""
    for unit in ("", " k", " M", " G"):
        if count < 1000:
            return f"{count:.0f}" if not unit else f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} T"


def human_width(width_ms: int) -> str:
    """900000 → '15 minutes'."""
    for unit, name in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")):
        if width_ms >= unit:
            count = width_ms // unit
            return name if count == 1 else f"{count} {name}s"
    return f"{width_ms} ms"


def instant(timestamp_ms: int) -> datetime:
    """Format a time in UTC."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


def headline(found: TopicProfile) -> str:
    """Describe the topic in one sentence."""
    if not found.records:
        return f"{found.topic}: no records"
    keyed = found.records - found.key_nulls
    keys = f"about {human_count(found.keys_distinct)} distinct keys" if keyed else "no keys"
    return (
        f"{found.topic}: {human_count(found.records)} records, {human_bytes(found.size_bytes)} in"
        f" {len(found.partitions)} partitions, {keys}"
    )


def share(part: int, whole: int) -> str:
    """Format '12 %'; '<1 %' and '>99 %' if rounding would give 0 or 100."""
    if not part or not whole:
        return "0 %"
    percent = round(100 * part / whole)
    if percent == 0:
        return "<1 %"
    return ">99 %" if percent == 100 and part < whole else f"{percent} %"


def spark_line(counts: list[int]) -> str:
    """Draw a histogram in one line; an empty bar is a blank, and every other bar is visible."""
    highest = max(counts, default=0)
    return "".join(BARS[-(-count * (len(BARS) - 1) // highest)] if count else BARS[0] for count in counts)


def print_profile(found: TopicProfile, console: Console) -> None:
    """Format the headline, the partitions, and the time line."""
    from rich.table import Table

    console.print(headline(found), style="bold")
    if not found.records:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (
        "PARTITION",
        "OFFSETS",
        "RECORDS",
        "BYTES",
        "SHARE",
        "KEYS",
        "NO KEY",
        "NO VALUE",
        "FIRST (UTC)",
        "LAST (UTC)",
    ):
        table.add_column(name, justify="left" if "UTC" in name else "right")
    several = len({each.topic for each in found.partitions}) > 1
    for each in found.partitions[:ROWS_MAX]:
        table.add_row(
            f"{each.topic}-{each.partition}" if several else str(each.partition),
            f"{each.first_offset}…{each.last_offset}",
            f"{each.records:,}",
            human_bytes(each.size_bytes),
            share(each.size_bytes, found.size_bytes),
            human_count(each.keys_distinct),
            share(each.key_nulls, each.records),
            share(each.value_nulls, each.records),
            *(f"{instant(at):%Y-%m-%d %H:%M:%S}" for at in (each.first_timestamp_ms, each.last_timestamp_ms)),
        )
    console.print(table)
    if len(found.partitions) > ROWS_MAX:
        console.print(f"… and {len(found.partitions) - ROWS_MAX} partitions more; -o json has all")
    median, most, nearly_all, largest = (*map(human_bytes, found.size_bytes_quantiles), "-", "-", "-", "-")[
        :4
    ]
    console.print(f"\nrecord sizes: half ≤ {median}, 90 % ≤ {most}, 99 % ≤ {nearly_all}, largest {largest}")
    console.print(
        f"records by {human_width(found.width_ms)}:"
        f" [cyan]{spark_line([each.records for each in found.bins])}[/cyan]",
        highlight=False,
    )


def as_json(found: TopicProfile) -> dict[str, Any]:
    """Return everything for JSON output, with units in the names."""
    return {
        "topic": found.topic,
        "records": found.records,
        "size_bytes": found.size_bytes,
        "keys_distinct_estimate": found.keys_distinct,
        "key_nulls": found.key_nulls,
        "value_nulls": found.value_nulls,
        "record_size_bytes": dict(
            zip(("p50", "p90", "p99", "max"), found.size_bytes_quantiles, strict=False)
        ),
        "partitions": [{name: getattr(each, name) for name in each.__slots__} for each in found.partitions],
        "histogram": {
            "width_ms": found.width_ms,
            "bins": [{name: getattr(each, name) for name in each.__slots__} for each in found.bins],
        },
        "sizes_log2": list(found.sizes),
    }
