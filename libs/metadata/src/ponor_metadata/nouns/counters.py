"""Counters: numbers that are assigned once and never reused, even after the row that used the number was
deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import cluster_of_id, compose_id

from ponor_metadata.nouns.cluster import require_cluster
from ponor_metadata.tables.columns import INTEGERS, TEXTS
from ponor_metadata.tables.schema import FIRST_FIELD, Noun, Schema, Section, View

STREAM: Final = "stream"
OBJECT: Final = "object"
PRODUCER: Final = "producer"
COMMIT_ORDER: Final = "stream_set_object_order"
COMPACTION: Final = "compaction"
SNAPSHOT: Final = "snapshot"
ID_COUNTERS: Final = (STREAM, OBJECT, PRODUCER)
TASK_COUNTERS: Final = (COMPACTION, SNAPSHOT)
"""Counters of numbers that are unique only within this cluster, because they do not contain its ordinal."""
FIRST_SEQUENCE: Final = 1
"""Sequence 0 is never used: an id of 0 means "none" on the wire."""
INCARNATION_JUMP: Final = 1 << 32
"""Minimum by which a forced recovery raises a counter. No lost part of the log raised it as far."""
RUN_BITS: Final = 36
"""Bits of the sequences in one run: each incarnation has a run of 2^36 sequences, and there are 2^13 runs."""


class CounterRow(NamedTuple):
    """The next value of a counter."""

    name: str
    next_value: int


COUNTERS: Final[Schema[str, CounterRow]] = Schema(
    "counters", CounterRow, FIRST_FIELD, (Section(4, (TEXTS, INTEGERS)),)
)


def next_value(view: View, name: str) -> int:
    """Return the counter's next value: an id that contains the cluster's ordinal, or a commit order, task id
    or lease id.
    """
    row = view[COUNTERS].get(name)
    if row is not None:
        return row.next_value
    cluster = require_cluster(view)
    if name == COMMIT_ORDER:
        return 0
    return FIRST_SEQUENCE if name in TASK_COUNTERS else compose_id(cluster.cluster_ordinal, FIRST_SEQUENCE)


def take(view: View, name: str, first: int, count: int = 1) -> None:
    """Mark [first, first + count) as assigned. Ids of another cluster do not change the counter."""
    following = next_value(view, name)
    # The id and the next value of an id counter both contain the ordinal of their cluster.
    if name in ID_COUNTERS and cluster_of_id(first) != cluster_of_id(following):
        return
    assert count > 0, f"{name}: a run of ids needs a positive count, not {count}"
    assert first >= following, f"{name} {first} was assigned before; the next id is {following}"
    assert name not in ID_COUNTERS or cluster_of_id(first + count - 1) == cluster_of_id(following)
    view[COUNTERS].put(CounterRow(name, first + count))


def jump(view: View, name: str, run: int) -> None:
    """Raise a counter above every value that a lost part of the log, or another recovery of the log, may have
    assigned.

    `run`: the run of the incarnation (`cluster.run_of`).
    """
    following = next_value(view, name)
    begin = run << RUN_BITS
    if name in ID_COUNTERS:
        begin = compose_id(cluster_of_id(following), begin)
    jumped = max(following + INCARNATION_JUMP, begin)
    assert cluster_of_id(jumped) == cluster_of_id(following), f"{name}: no id is left in the sequence"
    view[COUNTERS].put(CounterRow(name, jumped))


def producer_ids_allocated(view: View, record: records.ProducerIdsAllocated) -> None:
    """Mark a block of producer ids as assigned. The image does not store which broker got the block."""
    take(view, PRODUCER, record.first_producer_id, record.count)


def check_below(view: View, name: str, ids: Iterable[int]) -> None:
    """Check that ids of this cluster are below the next value of their counter.

    Raises:
        AssertionError: an id is not.
    """
    following = next_value(view, name)
    for each in ids:
        foreign = cluster_of_id(each) != cluster_of_id(following)
        assert foreign or each < following, f"{name} {each} is not below the next id {following}"


def _check(view: View) -> None:
    ordinal = require_cluster(view).cluster_ordinal
    for name in ID_COUNTERS:
        assert cluster_of_id(next_value(view, name)) == ordinal, f"counter {name}"


NOUN: Final = Noun(schemas=(COUNTERS,), rules=(producer_ids_allocated,), check=_check)
