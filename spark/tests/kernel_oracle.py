"""Decode records of uncompressed batches into Arrow arrays, in Python with numpy and pyarrow: the
oracle of the compiled `kernel`.

The rules of a record are those of Apache Kafka 4.3 (`DefaultRecord.readFrom`). A length or a count is a
varint of at most five bytes that wraps at 32 bits, a timestamp delta one of at most ten that wraps at 64.
Fields after the last requested column are not parsed: the batch's checksum covers them, and the broker has
validated them.

Arrow copies the bytes, not Python: an array of offsets that alternates between the start and the end of each
value makes the raw data a binary array in which every other item is a value, and a `take` of those copies
them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from ponor_kafka.primitives import Buffer
from ponor_kafka.record_rules import INT64_MAX, Rule, malformed
from ponor_spark.decode.columns import TIMESTAMP_TYPE_US, fixed, header_lists, variable
from ponor_spark.decode.errors import timestamp_too_large
from ponor_spark.decode.schema import HEADERS, KEY, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, VALUE
from ponor_spark.decode.window import Window

_VARINT_BYTES_MAX: Final = 5
_VARLONG_BYTES_MAX: Final = 10
_MS_MAX: Final = INT64_MAX // 1000
_BODY: Final = frozenset({KEY, VALUE, HEADERS})
_BEHIND_KEY: Final = frozenset({VALUE, HEADERS})


@dataclass(slots=True)
class _Spans:
    """Positions of a column's values in the open batch: alternating start and end, ascending; nulls have
    length 0.

    `chunks` holds those of earlier batches.
    """

    ends: list[int] = field(default_factory=list)
    nulls: list[bool] = field(default_factory=list)
    chunks: list[pa.Array] = field(default_factory=list)

    def put(self, start: int, end: int) -> None:
        """Add a value; the end -1 means null."""
        self.nulls.append(end < 0)
        self.ends += (start, max(start, end))

    def seal(self, data: Buffer) -> None:
        """Copy the values, so that the batch's data can be freed."""
        count = len(self.nulls)
        if count:
            offsets = np.array(self.ends, dtype=np.int32)
            alternating = variable(pa.binary(), 2 * count - 1, 0, None, offsets, data)
            self.chunks.append(alternating.take(_numbers(np.arange(0, 2 * count, 2), ~np.array(self.nulls))))
            self.ends, self.nulls = [], []

    def take(self) -> pa.Array:
        """Return all values so far as one array."""
        chunks, self.chunks = self.chunks, []
        return pa.concat_arrays(chunks) if chunks else variable(pa.binary(), 0, 0, None, bytes(4), b"")


class RowBuilder:
    """Collects rows of one or more batches, each started by `open` and decoded by `decode_more`.

    When it is full, `take` empties it, and the batch continues.
    """

    def __init__(self, columns: Collection[str], rows_max: int, bytes_max: int) -> None:
        """Create an empty builder.

        Args:
            columns: the requested columns, by the names in `schema`.
            rows_max: maximum rows.
            bytes_max: maximum bytes of keys, values and headers; a single row is always accepted.
        """
        self.rows = 0
        """Rows since the last `take`."""
        self.is_open = False
        """A batch is started and not finished."""
        self.place = 0
        """The Kafka offset that names the last opened batch in errors."""
        self._columns: Final = frozenset(columns)
        self._rows_max: Final = rows_max
        self._bytes_max: Final = bytes_max
        self._used = 0
        self._begin_columns()

    def _begin_columns(self) -> None:
        self._keys, self._values, self._header_keys, self._header_values = (
            _Spans(),
            _Spans(),
            _Spans(),
            _Spans(),
        )
        self._offsets: list[int] = []
        self._timestamps: list[int] = []
        self._types: list[int] = []
        self._header_ends: list[int] = [0]

    def open(self, data: Buffer, window: Window) -> None:
        """Start a batch with the uncompressed records `data`; the previous batch must be finished."""
        assert not self.is_open, "the batch before is not finished"
        self.is_open, self.place = True, window.place
        self._data: Buffer = data
        self._window = window
        self._at = self._index = 0
        self._previous_delta = -1

    def decode_more(self) -> bool:
        """Decode records until the batch ends (True) or the next one does not fit (False). An empty builder
        accepts any record.

        Raises:
            KafkaWireError: a record violates a rule; names both. The builder is unusable afterwards.
        """
        assert self.is_open, "no batch is open"
        data, window = self._data, self._window
        while self._index < window.record_count:
            end = self._record(data, window, self._index)
            if end < 0:
                self._seal(data)
                return False
            self._at = end
            self._index += 1
        if self._at != len(data):
            raise malformed(Rule.RECORDS_LEFT, self._index, 0, len(data) - self._at)
        self._seal(data)
        self._data = b""
        self.is_open = False
        return True

    def take_plain(
        self,
        data: memoryview,
        at: int,
        expected: int,
        bounds: tuple[int, int, int, int, int],
    ) -> tuple[int, int]:
        """Decode batches of a data block that need no special handling: no codec, no transaction, no damage,
        no ambiguity.

        An implementation may decode none, as this one does; the caller then handles all batches, more slowly.

        Args:
            data: the block.
            at: position of the next stream record.
            expected: its stream offset, -1 if any is valid.
            bounds: Kafka offset minus stream offset; the requested offsets [from, to) and times [from, to],
                in milliseconds.

        Returns:
            Position and stream offset after the last decoded record. Rows of its batch may remain
            (`is_open`): `decode_more` decodes them.

        Raises:
            KafkaWireError: a record of the batch at `place` violates a rule.
        """
        return at, expected

    def _record(self, data: Buffer, window: Window, index: int) -> int:
        """Decode or skip the record at `_at`; return its end, or -1 if it does not fit."""
        length, at = _varint(data, self._at, len(data), index)
        if not 0 < length <= len(data) - at:
            raise malformed(Rule.LENGTH, index, length, len(data) - at)
        end = at + length
        timestamp, at = _varlong(
            data, at + 1, end, index
        )  # after the attributes, whose bits have no meaning yet
        delta, at = _varint(data, at, end, index)
        if not self._previous_delta < delta <= window.last_offset_delta:
            raise malformed(Rule.OFFSET, index, delta, 0)
        offset = window.base_offset + delta
        timestamp = (
            window.base_timestamp_ms
            if window.is_append_time
            else _wrap64(window.base_timestamp_ms + timestamp)
        )
        is_wanted = (
            window.start_offset <= offset < window.end_offset
            and window.start_ms <= timestamp <= window.last_ms
        )
        if is_wanted and not self._row(data, at, end, index, offset, timestamp):
            return -1
        self._previous_delta = delta
        return end

    def _row(self, data: Buffer, at: int, end: int, index: int, offset: int, timestamp: int) -> bool:
        """Decode a record whose key begins at `at`; False if it does not fit."""
        columns, cost = self._columns, 0
        key = value = (0, 0)
        if columns & _BODY:
            start, stop, at = _nullable(data, at, end, index, Rule.KEY)
            key = (start, stop)
            cost += max(0, key[1] - key[0]) if KEY in columns else 0
        if columns & _BEHIND_KEY:
            start, stop, at = _nullable(data, at, end, index, Rule.VALUE)
            value = (start, stop)
            cost += max(0, value[1] - value[0]) if VALUE in columns else 0
        if HEADERS in columns:
            cost += end - at
        if self.rows and (self.rows >= self._rows_max or self._used + cost > self._bytes_max):
            return False
        if TIMESTAMP in columns and not -_MS_MAX <= timestamp <= _MS_MAX:
            raise timestamp_too_large(index, timestamp)
        self.rows += 1
        self._used += cost
        if KEY in columns:
            self._keys.put(*key)
        if VALUE in columns:
            self._values.put(*value)
        if HEADERS in columns:
            self._headers(data, at, end, index)
        self._offsets.append(offset)
        self._timestamps.append(timestamp)
        self._types.append(int(self._window.is_append_time))
        return True

    def _headers(self, data: Buffer, at: int, end: int, index: int) -> None:
        count, at = _varint(data, at, end, index)
        if not 0 <= count <= end - at:
            raise malformed(Rule.HEADER_COUNT, index, count, end - at)
        for _ in range(count):
            start, stop, at = _nullable(data, at, end, index, Rule.HEADER_KEY)
            if stop < 0:
                raise malformed(Rule.HEADER_KEY, index, -1, end - at)
            self._header_keys.put(start, stop)
            start, stop, at = _nullable(data, at, end, index, Rule.HEADER_VALUE)
            self._header_values.put(start, stop)
        if at != end:
            raise malformed(Rule.BODY_LEFT, index, 0, end - at)
        self._header_ends.append(self._header_ends[-1] + count)

    def _seal(self, data: Buffer) -> None:
        for spans in (self._keys, self._values, self._header_keys, self._header_values):
            spans.seal(data)

    def take(self) -> dict[str, pa.Array]:
        """Return the columns of the rows so far (at least one) and reset."""
        assert self.rows > 0, "there are no rows"
        rows, made = self.rows, {}
        if KEY in self._columns:
            made[KEY] = self._keys.take()
        if VALUE in self._columns:
            made[VALUE] = self._values.take()
        if OFFSET in self._columns:
            made[OFFSET] = fixed(pa.int64(), rows, np.array(self._offsets, dtype=np.int64))
        if TIMESTAMP in self._columns:
            made[TIMESTAMP] = fixed(
                TIMESTAMP_TYPE_US, rows, 1000 * np.array(self._timestamps, dtype=np.int64)
            )
        if TIMESTAMP_TYPE in self._columns:
            made[TIMESTAMP_TYPE] = fixed(pa.int32(), rows, np.array(self._types, dtype=np.int32))
        if HEADERS in self._columns:
            made[HEADERS] = self._take_headers(rows)
        self.rows = self._used = 0
        self._begin_columns()
        return made

    def _take_headers(self, rows: int) -> pa.Array:
        ends = np.array(self._header_ends, dtype=np.int32)
        is_there = np.diff(ends) > 0
        nulls = rows - int(is_there.sum())
        bits = np.packbits(is_there, bitorder="little") if nulls else None
        keys = _as_text(self._header_keys.take())
        return header_lists(rows, nulls, bits, ends, keys, self._header_values.take())


def _numbers(values: npt.NDArray[np.int64], is_there: npt.NDArray[np.bool_]) -> pa.Array:
    """Return an array with nulls; `pyarrow.array` would import pandas."""
    bits = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(pa.int64(), len(values), [bits, pa.py_buffer(values)])


def _as_text(keys: pa.Array) -> pa.Array:
    """Replace invalid UTF-8, as Java clients do."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [bytes(key.as_buffer()).decode(errors="replace").encode() for key in keys]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        return variable(pa.string(), len(texts), 0, None, ends, b"".join(texts))


def _nullable(data: Buffer, at: int, end: int, index: int, rule: Rule) -> tuple[int, int, int]:
    """Return start and end (-1: null) of a field, and the next position."""
    length, at = _varint(data, at, end, index)
    if length < 0:
        return at, -1, at
    if length > end - at:
        raise malformed(rule, index, length, end - at)
    return at, at + length, at + length


def _varint(data: Buffer, at: int, end: int, index: int) -> tuple[int, int]:
    bits, at = _unsigned(data, at, end, index, _VARINT_BYTES_MAX)
    bits &= 0xFFFF_FFFF
    return (bits >> 1) ^ -(bits & 1), at


def _varlong(data: Buffer, at: int, end: int, index: int) -> tuple[int, int]:
    bits, at = _unsigned(data, at, end, index, _VARLONG_BYTES_MAX)
    bits &= 0xFFFF_FFFF_FFFF_FFFF
    return (bits >> 1) ^ -(bits & 1), at


def _unsigned(data: Buffer, at: int, end: int, index: int, bytes_max: int) -> tuple[int, int]:
    bits = 0
    for shift in range(0, 7 * bytes_max, 7):
        if at >= end:
            raise malformed(Rule.NUMBER_ENDS, index, 0, 0)
        byte = data[at]
        at += 1
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            return bits, at
    raise malformed(Rule.NUMBER_TOO_LONG, index, 0, 0)


def _wrap64(number: int) -> int:
    return ((number + (1 << 63)) & 0xFFFF_FFFF_FFFF_FFFF) - (1 << 63)
