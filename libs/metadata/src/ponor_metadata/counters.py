"""Counters: numbers that are handed out once and never again, even after their last holder is gone."""

from __future__ import annotations

from typing import Final

from ponor_runtime.identity import cluster_of_id, compose_id

from ponor_metadata.rows import CounterRow
from ponor_metadata.view import View, cluster_of

STREAM: Final = "stream"
OBJECT: Final = "object"
PRODUCER: Final = "producer"
COMMIT_ORDER: Final = "stream_set_object_order"
COMPACTION: Final = "compaction"
SNAPSHOT: Final = "snapshot"
ID_COUNTERS: Final = (STREAM, OBJECT, PRODUCER)
TASK_COUNTERS: Final = (COMPACTION, SNAPSHOT)
"""Of this cluster alone: no cluster's ordinal is in them."""
FIRST_SEQUENCE: Final = 1
"""Sequence 0 is never used: an id of 0 stays free to mean "none" on the wire."""
INCARNATION_JUMP: Final = 1 << 32
"""How far a forced recovery moves a counter: further than any lost part of a log can have taken it; 2^17 jumps fit into the sequence."""


def next_value(view: View, name: str) -> int:
    """The next id of a kind, composed with the cluster's ordinal; or the next commit order, task or lease."""
    row = view.counters.get(name)
    if row is not None:
        return row.next_value
    cluster = cluster_of(view)
    assert cluster is not None, "the first record must be ClusterFormatted"
    if name == COMMIT_ORDER:
        return 0
    return FIRST_SEQUENCE if name in TASK_COUNTERS else compose_id(cluster.cluster_ordinal, FIRST_SEQUENCE)


def take(view: View, name: str, first: int, count: int = 1) -> None:
    """Mark [first, first + count) as handed out. Ids that another cluster made do not move our counter."""
    following = next_value(view, name)
    # An id carries its cluster, and so does the next one.
    if name in ID_COUNTERS and cluster_of_id(first) != cluster_of_id(following):
        return
    assert count > 0, f"{name}: a run of {count}"
    assert first >= following, f"{name} {first} was handed out before; the next is {following}"
    assert name not in ID_COUNTERS or cluster_of_id(first + count - 1) == cluster_of_id(following)
    view.counters.put(CounterRow(name, first + count))


def jump(view: View, name: str) -> None:
    """Move an id counter so far that no id which anybody may have seen is handed out again."""
    following = next_value(view, name)
    jumped = following + INCARNATION_JUMP
    assert cluster_of_id(jumped) == cluster_of_id(following), f"{name}: the sequence is used up"
    view.counters.put(CounterRow(name, jumped))
