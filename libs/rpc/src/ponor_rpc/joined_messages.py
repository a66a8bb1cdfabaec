"""Messages joined from parts that are encoded already.

What lives here: the few bytes that stand between the parts. A field of a message is its tag, its length and its bytes, and fields that follow each other are one message, so what
was encoded once for the log or for a window is not decoded, copied and encoded again for the frame around it. The bytes are those that protobuf itself would write, in the order of the field numbers where the parts
are joined in that order. Source: protobuf's Encoding guide, "Message structure".
"""

from __future__ import annotations

from typing import Final

VARINT: Final = 0
LENGTH_DELIMITED: Final = 2
_SHORT: Final = 1 << 11
"""Numbers below are encoded beforehand: most lengths are among them."""


def varint(number: int) -> bytes:
    """An unsigned number, seven bits a byte, the lowest first."""
    return _VARINTS[number] if 0 <= number < _SHORT else _encoded(number)


def message_head(field: int, size_bytes: int) -> bytes:
    """What stands before a message, string or bytes of this size in a field. Field numbers up to 15."""
    return _HEADS[field] + (_VARINTS[size_bytes] if size_bytes < _SHORT else _encoded(size_bytes))


def number_field(field: int, number: int) -> bytes:
    """A field that holds an unsigned number; nothing for 0, as proto3 demands. Field numbers up to 15."""
    return b"" if number == 0 else bytes((field << 3 | VARINT,)) + varint(number)


def joined_messages(field: int, size_bytes: int, parts: list[bytes]) -> bytes:
    """One field that holds a message of `size_bytes` bytes, given in parts."""
    return b"".join((message_head(field, size_bytes), *parts))


def _encoded(number: int) -> bytes:
    assert number >= 0, "an unsigned number"
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_VARINTS: Final = tuple(_encoded(number) for number in range(_SHORT))
_HEADS: Final = tuple(bytes((field << 3 | LENGTH_DELIMITED,)) for field in range(16))
