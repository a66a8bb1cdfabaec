"""Merge of state batches: ordered batches without overlaps, of which neighbours differ in state or count.

As in Kafka, if two batches contain an offset, the one with the higher delivery count wins, then the one with
the higher state. The result therefore does not depend on the order of writes, and a repeated write changes
nothing.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise, starmap
from operator import attrgetter

from ponor_broker.coordination.share_persister import DeliveryState, StateBatch

_last_offset = attrgetter("last_offset")
_first_offset = attrgetter("first_offset")


def merged(
    held: Sequence[StateBatch], new: Sequence[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Return the merge, without the offsets below `start_offset`.

    Args:
        held: an earlier result.
        new: in any order; may overlap.
        start_offset: −1 keeps all offsets.
    """
    if new:
        # Only the part of `held` that overlaps or adjoins the new batches can change.
        low = min(map(_first_offset, new)) - 1
        high = max(map(_last_offset, new)) + 1
        begin = bisect_left(held, low, key=_last_offset)
        end = bisect_right(held, high, key=_first_offset)
        held = [*held[:begin], *_swept([*held[begin:end], *new]), *held[end:]]
    return _pruned(held, start_offset)


def _pruned(batches: Sequence[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    first = bisect_left(batches, start_offset, key=_last_offset)
    kept = batches[first:]
    if kept and kept[0].first_offset < start_offset:
        return (kept[0]._replace(first_offset=start_offset), *kept[1:])
    return tuple(kept)


def _swept(batches: list[StateBatch]) -> list[StateBatch]:
    """Return the merge of batches in any order, in O(n log n)."""
    batches.sort()
    if all(starmap(_is_apart, pairwise(batches))):
        return batches
    result: list[StateBatch] = []
    # Batches that contain the current offset; the winner is first.
    open_batches: list[tuple[int, int, int]] = []
    position, offset = 0, 0
    while position < len(batches) or open_batches:
        if not open_batches:
            offset = max(offset, batches[position].first_offset)
        while position < len(batches) and batches[position].first_offset <= offset:
            _, last_offset, state, count = batches[position]
            heapq.heappush(open_batches, (-count, -state, last_offset))
            position += 1
        minus_count, minus_state, last_offset = open_batches[0]
        if last_offset < offset:
            heapq.heappop(open_batches)
            continue
        if position < len(batches):
            last_offset = min(last_offset, batches[position].first_offset - 1)
        _add(result, StateBatch(offset, last_offset, DeliveryState(-minus_state), -minus_count))
        offset = last_offset + 1
    return result


def _is_apart(one: StateBatch, following: StateBatch) -> bool:
    """Return whether two batches need no merge."""
    gap = following.first_offset - one.last_offset
    return gap > 1 or (gap == 1 and one[2:] != following[2:])


def _add(result: list[StateBatch], batch: StateBatch) -> None:
    """Append a batch, or extend the last one."""
    if result:
        last = result[-1]
        if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
            result[-1] = last._replace(last_offset=batch.last_offset)
            return
    result.append(batch)
