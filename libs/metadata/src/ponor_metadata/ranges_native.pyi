from array import array

def decode_columns(data: bytes) -> tuple[array[int], array[int], array[int]] | None: ...
def encode_list(runs: list[tuple[int, int, int]]) -> bytes | None: ...
def append_slot(
    with_stream: dict[int, array[int]],
    stream_ids: array[int],
    slot: int,
    orders: array[int],
    order: int,
) -> list[int]: ...
def join_columns(
    parts: list[tuple[array[int], array[int], array[int]]],
) -> list[tuple[int, int, int]] | None: ...
