"""Whether the outputs of a compaction hold what its sources held: everything that is still wanted, and nothing else.

A pure comparison of two sets of ranges, in time of their number (sorted runs, merged). Wanted is what lies at or above the start of a stream that is there.
What lies below may be in the outputs or not, as long as the sources held it: a worker copies whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ponor_runtime.identity import StreamId

Run: TypeAlias = tuple[int, int, int]
"""Stream id, start offset, end offset."""
StartOf: TypeAlias = Callable[[StreamId], int | None]
"""First offset of a stream that is still there; None for a stream that is not."""


def find_difference(
    held: Sequence[Run], made: Sequence[Run], start_of: StartOf, *, complete: bool
) -> str | None:
    """What is wrong with the outputs, in words; None if nothing is.

    Args:
        held: what the sources hold, as far as they are there; as `join_runs` makes it.
        made: what the worker says its objects hold; as `join_runs` makes it.
        start_of: where streams begin now.
        complete: all sources are there. What one that is gone held lies below the starts; that an output holds some of it cannot be checked any more, and harms nobody.
    """
    if made == held:
        return None  # nothing was left out: nearly every task, and much faster than the rest
    if complete:
        foreign = first_outside(made, held)
        if foreign is not None:
            return f"the outputs hold {_named(foreign)}, which the sources do not"
    wanted, offered = live(held, start_of), live(made, start_of)
    missing = first_outside(wanted, offered)
    if missing is not None:
        return f"the outputs do not hold {_named(missing)}"
    foreign = first_outside(offered, wanted)
    return None if foreign is None else f"the outputs hold {_named(foreign)}, which the sources do not"


def live(runs: Sequence[Run], start_of: StartOf) -> list[Run]:
    """What is left of sorted runs at or above the starts of their streams."""
    result: list[Run] = []
    stream_id, first = -1, None
    for run in runs:
        if run[0] != stream_id:
            stream_id, first = run[0], start_of(StreamId(run[0]))
        if first is not None and run[2] > first:
            result.append((stream_id, max(run[1], first), run[2]))
    return result


def first_outside(inner: Sequence[Run], outer: Sequence[Run]) -> Run | None:
    """The first of `inner` that does not lie wholly in one of `outer`; both as `join_runs` makes them."""
    i = 0
    for run in inner:
        while i < len(outer) and (outer[i][0], outer[i][2]) <= (run[0], run[1]):
            i += 1
        if i == len(outer) or outer[i][0] != run[0] or outer[i][1] > run[1] or outer[i][2] < run[2]:
            return run
    return None


def _named(run: Run) -> str:
    return f"[{run[1]}, {run[2]}) of stream {run[0]}"
