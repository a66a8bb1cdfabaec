"""Arrow arrays over memory that a kernel has filled, without copies or validation.

For the compiled kernel: places buffers into arrays (the Arrow columnar format). Also builds columns with the
same value in every row.
"""

from __future__ import annotations

from array import array
from typing import Any, Final, TypeAlias

import pyarrow as pa

from ponor_spark.decode.schema import FULL, HEADER_TYPE, HEADERS_TYPE, TIMESTAMP

Memory: TypeAlias = Any
"""Any object with the buffer protocol; Python has no type for it before 3.12 (PEP 688)."""
TIMESTAMP_TYPE_US: Final = FULL.field(TIMESTAMP).type


def variable(
    type_: pa.DataType, rows: int, nulls: int, bits: Memory | None, offsets: Memory, data: Memory
) -> pa.Array:
    """Binary or string values: `offsets` are rows + 1 signed 32-bit numbers, `bits` exist if there are
    nulls.
    """
    return pa.Array.from_buffers(
        type_, rows, [_optional(bits), pa.py_buffer(offsets), pa.py_buffer(data)], nulls
    )


def fixed(type_: pa.DataType, rows: int, values: Memory) -> pa.Array:
    """Numbers without nulls."""
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(values)], 0)


def header_lists(
    rows: int, nulls: int, bits: Memory | None, offsets: Memory, keys: pa.Array, values: pa.Array
) -> pa.Array:
    """The headers of each row, from all keys and all values in order."""
    items = pa.Array.from_buffers(HEADER_TYPE, len(keys), [None], 0, children=[keys, values])
    return pa.Array.from_buffers(
        HEADERS_TYPE, rows, [_optional(bits), pa.py_buffer(offsets)], nulls, children=[items]
    )


class ConstantColumn:
    """Constant column: created once for the longest batch so far, then sliced.

    Built by hand, because `pyarrow.scalar` imports pandas if installed: a second of CPU in every new executor
    worker.
    """

    def __init__(self, value: str | int) -> None:
        self._value: Final = value
        self._longest: pa.Array = self._of(0)

    def rows(self, count: int) -> pa.Array:
        """Return the column with that many rows."""
        if count > len(self._longest):
            self._longest = self._of(count)
        return self._longest.slice(0, count)

    def _of(self, count: int) -> pa.Array:
        if isinstance(self._value, int):
            return fixed(pa.int32(), count, array("i", [self._value]) * count)
        text = self._value.encode()
        ends = array("i", [number * len(text) for number in range(count + 1)])
        return variable(pa.string(), count, 0, None, ends, text * count)


def _optional(bits: Memory | None) -> pa.Memory | None:
    return None if bits is None else pa.py_buffer(bits)
