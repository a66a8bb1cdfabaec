"""Scan of the records in an uncompressed batch: key, offset, timestamp, whether there is a value,
and position.

Values and headers are never decoded, because kept records are copied unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import decode_varint, decode_varlong
from ponor_kafka.records import scan_records


class ScannedRecord(NamedTuple):
    """A record at [start, end) of the data, including its length field."""

    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def scan(data: bytes, count: int) -> Iterator[ScannedRecord]:
    """Yield `count` records, which must fill the data.

    Raises:
        KafkaWireError: they do not fill the data.
    """
    start = 0
    for timestamp_delta, offset_delta, key_at, end in scan_records(data, count):
        key: bytes | None = None
        key_length, at = decode_varint(data, key_at, end)
        if key_length >= 0:
            value_at = at + key_length
            if value_at >= end:
                raise KafkaWireError(f"a record's key has {key_length} bytes, but only {end - at} are left")
            key = data[at:value_at]
            at = value_at
        value_length, _ = decode_varint(data, at, end)
        yield ScannedRecord(start, end, timestamp_delta, offset_delta, key, value_length >= 0)
        start = end


def behind_timestamp(data: bytes, start: int, end: int) -> int:
    """Return the position after a record's timestamp delta, where the offset delta starts."""
    _, at = decode_varlong(data, start, end)
    _, at = decode_varlong(data, at + 1, end)
    return at
