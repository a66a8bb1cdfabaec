"""Join encoded parts into protobuf messages.

An encoded message is a sequence of fields, each with tag, length and bytes. So a part that is already encoded
(for the log, or for a window) can be put into a frame without decoding and encoding it again. The result
equals protobuf's own encoding if the parts are in field number order. Source: protobuf's Encoding guide,
"Message structure".
"""

from __future__ import annotations

from typing import Final

VARINT: Final = 0
LENGTH_DELIMITED: Final = 2
_SHORT: Final = 1 << 11
"""Numbers below this are encoded in advance. Most lengths are smaller."""


def varint(number: int) -> bytes:
    """Encode an unsigned number: seven bits per byte, lowest first."""
    return _VARINTS[number] if 0 <= number < _SHORT else _encoded(number)


def message_head(field: int, size_bytes: int) -> bytes:
    """Encode tag and length of a message, string or bytes field. The field number must be at most 15."""
    return _HEADS[field] + (_VARINTS[size_bytes] if size_bytes < _SHORT else _encoded(size_bytes))


def number_field(field: int, number: int) -> bytes:
    """Encode an unsigned number field; empty for 0, as in proto3. The field number must be at most 15."""
    return b"" if number == 0 else bytes((field << 3 | VARINT,)) + varint(number)


def joined_messages(field: int, size_bytes: int, parts: list[bytes]) -> bytes:
    """Encode one field that contains a message. `parts` joined are the message, of `size_bytes` bytes."""
    return b"".join((message_head(field, size_bytes), *parts))


def _encoded(number: int) -> bytes:
    assert number >= 0, "the number is negative"
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_VARINTS: Final = tuple(_encoded(number) for number in range(_SHORT))
_HEADS: Final = tuple(bytes((field << 3 | LENGTH_DELIMITED,)) for field in range(16))
