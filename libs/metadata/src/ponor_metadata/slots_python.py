"""How a stream set object enters the index of streams, without compiled code: the twin of `ranges_native.append_slot`."""

from __future__ import annotations

from array import array


def append_slot(
    with_stream: dict[int, array[int]],
    stream_ids: array[int],
    slot: int,
    orders: array[int],
    order: int,
) -> list[int]:
    """Append a slot to the lists of these streams, where `order` is above that of the last one. Returns the streams where it is not."""
    left = []
    for stream_id in dict.fromkeys(stream_ids):
        slots = with_stream.get(stream_id)
        if slots is None:
            with_stream[stream_id] = array("I", (slot,))
        elif orders[slots[-1]] < order:  # most commits come in order
            slots.append(slot)
        else:
            left.append(stream_id)
    return left
