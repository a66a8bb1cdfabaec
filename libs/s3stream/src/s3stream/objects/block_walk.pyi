from array import array

def walk(
    data: bytes,
    at: int,
    records_max: int,
    stream_id: int,
    epoch: int,
    offset: int,
    positions: array[int],
    base_offsets: array[int],
) -> tuple[int, int, int]: ...
