"""Decide whether a micro-batch is already in the table. No I/O.

Before writing, the batch's ranges are compared with the table's end offsets; afterwards the written rows are
compared with both. A restarted query gets the same batch with the same offsets, because Spark records them
before it runs the batch. A batch is therefore in the table entirely or not at all; any other state is an
error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ponor_spark.jobs.iceberg.ledger import Ends, LedgerError

Ranges: TypeAlias = Mapping[tuple[str, int], tuple[int | None, int]]
"""By topic id and partition: the micro-batch's first offset (None if the query began with this batch, at the
log start or at the options' offsets) and the offset after its last.
"""


class Coverage(Enum):
    """Action for a batch."""

    NEW = "new"
    PRESENT = "present"


@dataclass(frozen=True, slots=True)
class Span:
    """Content of one data file for a partition: smallest and largest offset, number of rows."""

    topic_id: str
    partition: int
    first_offset: int
    last_offset: int
    rows: int


def coverage(ranges: Ranges, held: Ends, table: str) -> Coverage:
    """Return NEW if the table ends where the batch begins in all partitions, PRESENT if it has all of it.

    Raises:
        LedgerError: only some partitions are present, one is present in part, or offsets between the table's
            end and the batch's start are missing.
    """
    present: list[str] = []
    new: list[str] = []
    for (topic_id, partition), (start, end) in sorted(ranges.items()):
        known = held.get(topic_id, {}).get(partition)
        name = f"{topic_id}/{partition}"
        if known is None:
            if start:
                raise _hole(table, name, "nothing", start)
            new.append(name)
        elif start != end:
            _check_partition(table, name, known, start, end)
            (present if known >= end else new).append(name)
    if present and new:
        raise LedgerError(
            f"table {table} has {present[0]} of this batch, but not {new[0]}: another job writes the same"
            " topic into the table, or this checkpoint belongs to another table; use one job and one"
            " checkpoint for each topic of a table"
        )
    return Coverage.NEW if new else Coverage.PRESENT


def _check_partition(table: str, name: str, known: int, start: int | None, end: int) -> None:
    if start is not None and known < start:
        raise _hole(table, name, f"offsets below {known}", start)
    if start is not None and start < known < end:
        raise LedgerError(
            f"table {table} has {name} up to {known}, and this batch is {start} to {end}: the table was"
            " written from another checkpoint; begin with a new one, which continues at the table's offsets"
        )


def _hole(table: str, name: str, has: str, start: int) -> LedgerError:
    return LedgerError(
        f"table {table} has {has} of {name}, and this batch begins at {start}: the checkpoint is ahead of"
        " the table (was the table dropped or restored?); begin with a new checkpoint, which continues at"
        " the table's offsets"
    )


def check_done(done: Ends, held: Ends, table: str) -> None:
    """Check that everything committed in the checkpoint is in the table. A query ahead of the table would
    never write the offsets in between, and would report no error while its topic is idle.

    Raises:
        LedgerError: rows are missing from the table.
    """
    for topic_id, partitions in sorted(done.items()):
        for partition, end in sorted(partitions.items()):
            known = held.get(topic_id, {}).get(partition, 0)
            if known < end:
                has = f"offsets below {known}" if known else "nothing"
                raise LedgerError(
                    f"table {table} has {has} of {topic_id}/{partition}, and the checkpoint is at {end}: the"
                    " checkpoint belongs to another table, or the table was dropped or restored; give"
                    " --checkpoint a new one, which continues at the table's offsets"
                )


def check_rows(ranges: Ranges, held: Ends, spans: Iterable[Span], table: str) -> int:
    """Return the number of written rows; all must be in the batch's ranges and above the table's ends.

    Raises:
        LedgerError: a row is outside these offsets; nothing was committed.
    """
    rows = 0
    for span in spans:
        start, end = ranges.get((span.topic_id, span.partition), (0, 0))
        begin = max(start or 0, held.get(span.topic_id, {}).get(span.partition, 0))
        if not begin <= span.first_offset <= span.last_offset < end:
            raise LedgerError(
                f"table {table}: rows of {span.topic_id}/{span.partition} at offsets {span.first_offset} to"
                f" {span.last_offset} are outside of [{begin}, {end}), which this batch may add; set"
                " startingOffsets to the table's end offsets, or use a new checkpoint, which starts there"
            )
        rows += span.rows
    return rows


def ends_after(ranges: Ranges, held: Ends) -> Ends:
    """Return the table's ends after this batch; partitions outside the batch keep theirs."""
    ends = {topic_id: dict(partitions) for topic_id, partitions in held.items()}
    for (topic_id, partition), (_, end) in ranges.items():
        of_topic = ends.setdefault(topic_id, {})
        of_topic[partition] = max(end, of_topic.get(partition, 0))
    return ends
