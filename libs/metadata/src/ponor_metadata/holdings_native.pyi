from array import array
from collections.abc import Sequence

from ponor_metadata.blocks import StructBlocks

def note_all(
    of_stream: dict[int, array[int]],
    rows: StructBlocks,
    keys: list[int],
    values: Sequence[tuple[int, int, int]],
) -> list[int]: ...
