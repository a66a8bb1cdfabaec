from collections.abc import Collection

import pyarrow as pa
from ponor_kafka.primitives import Buffer

from ponor_spark.decode.window import Window

class RowBuilder:
    rows: int
    place: int
    is_open: bool
    def __init__(self, columns: Collection[str], rows_max: int, bytes_max: int) -> None: ...
    def open(self, data: Buffer, window: Window) -> None: ...
    def decode_more(self) -> bool: ...
    def take_plain(
        self, data: memoryview, at: int, expected: int, bounds: tuple[int, int, int, int, int]
    ) -> tuple[int, int]: ...
    def take(self) -> dict[str, pa.Array]: ...
