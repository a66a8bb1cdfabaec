"""Single uncompressed records of a batch of format v2.

A record is a varint length, then attributes, timestamp delta, offset delta, key, value and headers; all
numbers are zigzag varints. Decoding is strict: a wrong length, a null header key or trailing bytes are
errors.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import Buffer, append_varlong, decode_varint, decode_varlong

RECORD_BYTES_MIN: Final = 7
"""Length, attributes, both deltas, key length, value length and header count, one byte each."""


class Header(NamedTuple):
    """A record header; the value may be null, the key may not."""

    key: str
    value: bytes | None


class Record(NamedTuple):
    """A decoded record. The timestamp is in milliseconds; None as key or value means null."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class RecordBounds(NamedTuple):
    """Position of a record in its batch's data, and its deltas: enough to find it without decoding it."""

    timestamp_delta: int
    offset_delta: int
    key_position: int
    end: int


def scan_records(data: Buffer, count: int) -> Iterator[RecordBounds]:
    """Iterate over `count` records without decoding keys, values and headers.

    Raises KafkaWireError if they are malformed.
    """
    pos, end = 0, len(data)
    for index in range(count):
        length, pos = decode_varint(data, pos, end)
        if not RECORD_BYTES_MIN - 1 <= length <= end - pos:
            raise KafkaWireError(f"record {index} claims {length} bytes, but only {end - pos} are left")
        record_end = pos + length
        timestamp_delta, pos = decode_varlong(data, pos + 1, record_end)
        offset_delta, pos = decode_varint(data, pos, record_end)
        yield RecordBounds(timestamp_delta, offset_delta, pos, record_end)
        pos = record_end
    if pos != end:
        raise KafkaWireError(f"{end - pos} bytes are left after the last of {count} records")


def decode_body(data: Buffer, bounds: RecordBounds) -> tuple[bytes | None, bytes | None, tuple[Header, ...]]:
    """Decode key, value and headers of the record at `bounds`."""
    end = bounds.end
    key, pos = _nullable_bytes(data, bounds.key_position, end, "key")
    value, pos = _nullable_bytes(data, pos, end, "value")
    count, pos = decode_varint(data, pos, end)
    if not 0 <= 2 * count <= end - pos:
        raise KafkaWireError(f"a record claims {count} headers in {end - pos} bytes")
    headers: tuple[Header, ...] = ()
    if count:
        decoded = []
        for _ in range(count):
            name, pos = _nullable_bytes(data, pos, end, "header key")
            if name is None:
                raise KafkaWireError("a header has a null key")
            header_value, pos = _nullable_bytes(data, pos, end, "header value")
            decoded.append(Header(_utf8(name), header_value))
        headers = tuple(decoded)
    if pos != end:
        raise KafkaWireError(f"{end - pos} bytes are left after the headers of a record")
    return key, value, headers


def append_record(
    out: bytearray,
    *,
    timestamp_delta: int,
    offset_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[str, Buffer | None]],
) -> None:
    """Append one record to `out`."""
    body = bytearray(1)  # record attributes: all bits are reserved
    append_varlong(body, timestamp_delta)
    append_varlong(body, offset_delta)
    _append_nullable_bytes(body, key)
    _append_nullable_bytes(body, value)
    append_varlong(body, len(headers))
    for name, header_value in headers:
        _append_nullable_bytes(body, name.encode())
        _append_nullable_bytes(body, header_value)
    append_varlong(out, len(body))
    out += body


def _nullable_bytes(data: Buffer, pos: int, end: int, what: str) -> tuple[bytes | None, int]:
    length, pos = decode_varint(data, pos, end)
    if length < 0:
        return None, pos
    if length > end - pos:
        raise KafkaWireError(f"a record's {what} claims {length} bytes, but only {end - pos} are left")
    return bytes(data[pos : pos + length]), pos + length


def _append_nullable_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        append_varlong(out, -1)
    else:
        append_varlong(out, len(value))
        out += value


def _utf8(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise KafkaWireError(f"a header key is not UTF-8: {error.reason}") from error
