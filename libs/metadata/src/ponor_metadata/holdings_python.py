"""How loaded stream objects enter the index of streams, without compiled code: the twin of `holdings_native`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ponor_metadata.blocks import StructBlocks


def note_all(
    of_stream: dict[int, array[int]],
    rows: StructBlocks,
    keys: list[int],
    values: Sequence[tuple[int, int, int]],
) -> list[int]:
    """Enter rows that were just loaded. Returns the places of those that do not begin behind the last object of their stream, which are left out."""
    left = []
    for n, (key, (stream_id, start, _)) in enumerate(zip(keys, values, strict=True)):
        ids = of_stream.get(stream_id)
        last = None if ids is None else rows.get(ids[-1])
        if ids is None:
            of_stream[stream_id] = array("q", (key,))
        elif last is not None and last[1] < start:  # most objects continue their stream
            ids.append(key)
        else:
            left.append(n)
    return left
