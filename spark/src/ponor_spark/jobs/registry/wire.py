"""Confluent wire format: how a value names its schema. No I/O.

    0x00 | schema id, 4 bytes, big endian | Avro or JSON
    0x00 | schema id | count, index … (zigzag varints; a single 0 stands for "1, 0") | Protobuf

The indexes select a message type in the file: 2, 0 is the first type nested in the third top-level type.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

MAGIC: Final = 0
HEADER: Final = struct.Struct(">BI")
INDEXES_MAX: Final = 32
"""Maximum nesting of message types; deeper ones are damaged data."""
VARINT_BYTES_MAX: Final = 5


class NotFramedError(ValueError):
    """The value does not begin with the framing of a registry's serializer."""


class Framed(NamedTuple):
    """A value without its framing: the id of the schema, and the remaining bytes."""

    schema_id: int
    body: bytes


def framed(value: bytes) -> Framed:
    """Remove the framing from a value.

    Raises:
        NotFramedError: too short, or another first byte.
    """
    if len(value) < HEADER.size:
        raise NotFramedError(
            f"{len(value)} bytes, shorter than the header of {HEADER.size} bytes with the schema id"
        )
    magic, schema_id = HEADER.unpack_from(value)
    if magic != MAGIC:
        raise NotFramedError(
            f"the first byte is {magic} instead of {MAGIC}: the value was not written with a schema registry"
        )
    return Framed(schema_id, value[HEADER.size :])


def message_indexes(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the message type's indexes and the message.

    Raises:
        NotFramedError: invalid indexes.
    """
    count, at = _varint(body, 0)
    if count == 0:
        return (0,), body[at:]
    if not 0 < count <= INDEXES_MAX:
        raise NotFramedError(f"{count} message indexes instead of 1 to {INDEXES_MAX}")
    indexes = []
    for _ in range(count):
        index, at = _varint(body, at)
        if index < 0:
            raise NotFramedError(f"message index {index} is negative")
        indexes.append(index)
    return tuple(indexes), body[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count in range(VARINT_BYTES_MAX):
        if at + count >= len(data):
            raise NotFramedError("the value ends within its message indexes")
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + count + 1
    raise NotFramedError("a message index of more than 32 bits")
