from array import array
from typing import Any

def untrack(container: object) -> None: ...
def note_all(
    of_stream: dict[int, array[int]],
    rows: Any,
    keys: list[int],
    values: list[tuple[int, int, int]],
) -> list[int]: ...
def append_slot(
    with_stream: dict[int, array[int]],
    stream_ids: array[int],
    slot: int,
    orders: array[int],
    order: int,
) -> list[int]: ...
