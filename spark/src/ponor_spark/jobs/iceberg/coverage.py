"""Whether a micro-batch is already in the table: pure.

What lives here: the batch's ranges against the ends that the table holds, before anything is written, and the rows that were written against both. A
restarted query gets the same batch with the same
offsets (Spark wrote them down before it ran the batch), so a batch is in the table as a whole or not at all; whatever else is found is somebody's mistake,
and is said instead of written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ponor_spark.jobs.iceberg.ledger import Ends, LedgerError

Ranges: TypeAlias = Mapping[tuple[str, int], tuple[int | None, int]]
"""By topic id and partition: the micro-batch's first offset (None where the query began with this batch: at the start of the log, or wherever its options say) and the offset behind its last."""


class Coverage(Enum):
    """What is to be done with a batch."""

    NEW = "new"
    PRESENT = "present"


@dataclass(frozen=True, slots=True)
class Span:
    """What one data file holds of a partition: the smallest and the largest offset, and how many rows."""

    topic_id: str
    partition: int
    first_offset: int
    last_offset: int
    rows: int


def coverage(ranges: Ranges, held: Ends, table: str) -> Coverage:
    """NEW: the table continues where the batch begins, in all partitions. PRESENT: the table has all of it.

    Raises:
        LedgerError: some partitions are there and some are not, one is there in part, or offsets between the table's end and the batch's start are missing.
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
            f"table {table} has {present[0]} of this batch, and not {new[0]}: another job writes the same topic into it, or its checkpoint is another's; give every topic of a table one job and one checkpoint"
        )
    return Coverage.NEW if new else Coverage.PRESENT


def _check_partition(table: str, name: str, known: int, start: int | None, end: int) -> None:
    if start is not None and known < start:
        raise _hole(table, name, f"offsets below {known}", start)
    if start is not None and start < known < end:
        raise LedgerError(
            f"table {table} has {name} up to {known}, and this batch is {start} to {end}: its checkpoint is not the one that wrote the table; begin with a new checkpoint, which continues at the table's offsets"
        )


def _hole(table: str, name: str, has: str, start: int) -> LedgerError:
    return LedgerError(
        f"table {table} has {has} of {name}, and this batch begins at {start}: the checkpoint is ahead of the table (was the table dropped or restored?); begin with a new checkpoint, which continues at the table's offsets"
    )


def check_done(done: Ends, held: Ends, table: str) -> None:
    """What a checkpoint takes for done is in the table: a query that is ahead of it would not write what is between, and has no batch to find it by while its topic is quiet.

    Raises:
        LedgerError: it is not.
    """
    for topic_id, partitions in sorted(done.items()):
        for partition, end in sorted(partitions.items()):
            known = held.get(topic_id, {}).get(partition, 0)
            if known < end:
                has = f"offsets below {known}" if known else "nothing"
                raise LedgerError(
                    f"table {table} has {has} of {topic_id}/{partition}, and the checkpoint is at {end}: it is another table's, or the table was dropped or restored; give --checkpoint a new one, which continues at the table's offsets"
                )


def check_rows(ranges: Ranges, held: Ends, spans: Iterable[Span], table: str) -> int:
    """How many rows were written, all of them in the batch's ranges and none below what the table holds.

    Raises:
        LedgerError: a row is outside; nothing was committed.
    """
    rows = 0
    for span in spans:
        start, end = ranges.get((span.topic_id, span.partition), (0, 0))
        begin = max(start or 0, held.get(span.topic_id, {}).get(span.partition, 0))
        if not begin <= span.first_offset <= span.last_offset < end:
            raise LedgerError(
                f"table {table}: rows of {span.topic_id}/{span.partition} at {span.first_offset} to {span.last_offset} are outside of what this batch may add, {begin} to {end};"
                " set startingOffsets to where the table ends, or use a new checkpoint, which does so"
            )
        rows += span.rows
    return rows


def ends_after(ranges: Ranges, held: Ends) -> Ends:
    """The table's ends with this batch; partitions that the batch does not know keep theirs."""
    ends = {topic_id: dict(partitions) for topic_id, partitions in held.items()}
    for (topic_id, partition), (_, end) in ranges.items():
        of_topic = ends.setdefault(topic_id, {})
        of_topic[partition] = max(end, of_topic.get(partition, 0))
    return ends
