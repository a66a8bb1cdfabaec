"""Read the offsets that an Iceberg table contains from its properties. No I/O.

The summary of every Iceberg snapshot that this job commits contains the end offset of every Kafka partition
that has records in the table (`ponor.ends`) and the offset ranges that the snapshot added (`ponor.ranges`).
The same commit writes the end offsets and the snapshot's id to a table property (`ponor.offsets`).

The job looks for its newest snapshot among the ANCESTORS of the current snapshot, because compaction, deletes
and property changes add later snapshots. If the job's snapshot has expired, it uses the table property. If
the offsets in the newest snapshot of this job differ from those in the table property, the table was rolled
back or replaced. In that case the job raises LedgerError: rows were removed on purpose, and the job cannot
know whether to write them again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ponor_spark.errors import PonorSparkError

CLUSTER_ID: Final = "ponor.cluster-id"
QUERY_ID: Final = "ponor.query-id"
BATCH_ID: Final = "ponor.batch-id"
RANGES: Final = "ponor.ranges"
ENDS: Final = "ponor.ends"
ROWS: Final = "ponor.rows"
MIRROR: Final = "ponor.offsets"
"""The table property: {"snapshot-id": n, "sequence-number": n, "ends": {topic id: {partition: end offset}}}.
"""

Ends: TypeAlias = dict[str, dict[int, int]]
"""By topic id and partition: the offset after the last one that the table contains."""


class LedgerError(PonorSparkError):
    """The offsets in the table are unreadable, or contradict each other or the batch to be written."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """The current snapshot or an ancestor.

    Sequence numbers rise with every commit to the table; a rollback does not reset them.
    """

    snapshot_id: int
    sequence_number: int
    summary: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class History:
    """History of a table.

    `ancestors`: the current snapshot, its parent, and so on, newest first, up to the first expired one.
    `snapshot_ids`: all snapshots that the table still has, on any branch. `mirror`: the table property
    MIRROR.
    """

    ancestors: Sequence[Ancestor]
    snapshot_ids: frozenset[int]
    mirror: str | None


@dataclass(frozen=True, slots=True)
class _Mirrored:
    snapshot_id: int
    sequence_number: int
    ends: Ends


def held_ends(history: History, table: str) -> Ends:
    """Return for each partition the offset after the last one that the table contains; an empty dict if this
    job has not written to the table.

    Args:
        history: the table's history.
        table: its name, for the error.

    Raises:
        LedgerError: the table was rolled back or replaced, or its properties are invalid.
    """
    newest = next((ancestor for ancestor in history.ancestors if ENDS in ancestor.summary), None)
    mirrored = None if history.mirror is None else _mirrored(history.mirror, table)
    if newest is None:
        return {} if mirrored is None else _of_expired(history, mirrored, table)
    ends = ends_from_json(newest.summary[ENDS], f"snapshot {newest.snapshot_id} of {table}")
    if mirrored is not None and (mirrored.snapshot_id, mirrored.ends) != (newest.snapshot_id, ends):
        raise _rolled_back(
            table,
            f"the newest snapshot of this job is {newest.snapshot_id}, but property {MIRROR} names"
            f" {mirrored.snapshot_id} or has other offsets",
        )
    return ends


def _of_expired(history: History, mirrored: _Mirrored, table: str) -> Ends:
    """Handle a history in which neither the current snapshot nor an ancestor was committed by this job.

    If the job's snapshot has expired, the table no longer lists it, and the remaining snapshots are newer. An
    older remaining ancestor means that the table was rolled back.

    A missing parent of the oldest ancestor does not prove a rollback: when a snapshot expires, some libraries
    remove the reference to it (pyiceberg 0.12), others keep it (Iceberg's Java library).
    """
    outlived = [each for each in history.ancestors if each.sequence_number < mirrored.sequence_number]
    if mirrored.snapshot_id in history.snapshot_ids or outlived or not history.ancestors:
        raise _rolled_back(
            table,
            f"its property {MIRROR} names snapshot {mirrored.snapshot_id}, which is not an ancestor of the"
            " current one",
        )
    return mirrored.ends


def _rolled_back(table: str, why: str) -> LedgerError:
    return LedgerError(
        f"table {table} was rolled back or replaced: {why}; to write the removed rows again, remove property"
        f" {MIRROR} and start with a new checkpoint, or set {MIRROR} to the offsets that the table now"
        " contains"
    )


def snapshot_properties(
    ranges: Mapping[tuple[str, int], tuple[int | None, int]],
    ends: Ends,
    *,
    cluster_id: str,
    query_id: str,
    batch_id: int,
    rows: int,
) -> dict[str, str]:
    """Properties of this job's snapshots.

    `ranges`: start (None: the log's start) and end by topic id and partition.
    """
    by_topic: dict[str, dict[str, list[int | None]]] = {}
    for (topic_id, partition), (start, end) in sorted(ranges.items()):
        by_topic.setdefault(topic_id, {})[str(partition)] = [start, end]
    return {
        CLUSTER_ID: cluster_id,
        QUERY_ID: query_id,
        BATCH_ID: str(batch_id),
        ROWS: str(rows),
        RANGES: json.dumps(by_topic, separators=(",", ":")),
        ENDS: ends_to_json(ends),
    }


def mirror_property(snapshot_id: int, sequence_number: int, ends: Ends) -> dict[str, str]:
    """Return the table property that belongs to the snapshot."""
    return {
        MIRROR: f'{{"snapshot-id":{snapshot_id},"sequence-number":{sequence_number},"ends":{ends_to_json(ends)}}}'  # noqa: E501
    }


def ends_to_json(ends: Ends) -> str:
    """Sort topic ids and partitions, so that equal ends are equal text."""
    ordered = {topic: {str(p): end for p, end in sorted(ends[topic].items())} for topic in sorted(ends)}
    return json.dumps(ordered, separators=(",", ":"))


def ends_from_json(text: str, where: str) -> Ends:
    """Parse ends; raise LedgerError, naming `where` they were found, if they are invalid."""
    try:
        return _ends(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        raise LedgerError(
            f"{where}: the offsets {text[:80]!r} are unreadable; was the property changed by hand?"
        ) from None


def _mirrored(text: str, table: str) -> _Mirrored:
    try:
        found = json.loads(text)
        return _Mirrored(int(found["snapshot-id"]), int(found["sequence-number"]), _ends(found["ends"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise LedgerError(
            f"table {table}: its property {MIRROR} is unreadable: {text[:80]!r}; was it changed by hand?"
        ) from None


def _ends(found: Any) -> Ends:
    return {
        str(topic): {int(p): int(end) for p, end in partitions.items()} for topic, partitions in found.items()
    }
