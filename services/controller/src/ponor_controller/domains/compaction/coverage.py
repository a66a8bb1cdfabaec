"""Check that the outputs of a compaction contain exactly the live data of its sources.

The check compares two sorted sets of ranges in linear time. Data at or above the start of an existing stream
is live. The outputs may also contain data below the start if the sources contain it, because a worker copies
whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ponor_runtime.identity import StreamId

Run: TypeAlias = tuple[int, int, int]
"""Stream id, start offset, end offset."""
StartOf: TypeAlias = Callable[[StreamId], int | None]
"""Start offset of an existing stream; None for a deleted one."""


def find_difference(
    held: Sequence[Run], made: Sequence[Run], start_of: StartOf, *, complete: bool
) -> str | None:
    """Describe the difference between sources and outputs; None if the outputs are correct.

    Args:
        held: runs of the existing sources, from `join_runs`.
        made: runs of the outputs according to the worker, from `join_runs`.
        start_of: start offsets of streams.
        complete: whether all sources still exist. All data of a destroyed source is below the starts of its
            streams. If an output contains such data, this cannot be verified and is harmless.
    """
    if made == held:
        return None  # the usual case, and much faster than the comparison below
    if complete:
        foreign = first_outside(made, held)
        if foreign is not None:
            return f"the outputs contain {_named(foreign)}, but the sources do not"
    needed, offered = live(held, start_of), live(made, start_of)
    missing = first_outside(needed, offered)
    if missing is not None:
        return f"the outputs do not contain {_named(missing)}"
    foreign = first_outside(offered, needed)
    return None if foreign is None else f"the outputs contain {_named(foreign)}, but the sources do not"


def live(runs: Sequence[Run], start_of: StartOf) -> list[Run]:
    """The parts of sorted runs at or above the starts of their streams."""
    result: list[Run] = []
    stream_id, first = -1, None
    for run in runs:
        if run[0] != stream_id:
            stream_id, first = run[0], start_of(StreamId(run[0]))
        if first is not None and run[2] > first:
            result.append((stream_id, max(run[1], first), run[2]))
    return result


def first_outside(inner: Sequence[Run], outer: Sequence[Run]) -> Run | None:
    """The first run of `inner` that no run of `outer` contains completely; both from `join_runs`."""
    i = 0
    for run in inner:
        while i < len(outer) and (outer[i][0], outer[i][2]) <= (run[0], run[1]):
            i += 1
        if i == len(outer) or outer[i][0] != run[0] or outer[i][1] > run[1] or outer[i][2] < run[2]:
            return run
    return None


def _named(run: Run) -> str:
    return f"[{run[1]}, {run[2]}) of stream {run[0]}"
