"""Variable-width integers of the protocol, and the shared buffer types.

Unsigned varints encode lengths and tags in flexible versions (KIP-482); zigzag varints and varlongs encode
all numbers of a record. Decoding functions return the value and the end position.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from ponor_kafka.errors import KafkaEncodeError, KafkaWireError

Buffer: TypeAlias = bytes | bytearray | memoryview
Records: TypeAlias = Buffer | Sequence[Buffer]
"""Record batches: one memoryview when decoded, any buffer or list of buffers when encoded."""

UNSIGNED_VARINT_BYTES_MAX: Final = 5
VARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10
INT32_MIN: Final = -(1 << 31)
INT32_MAX: Final = (1 << 31) - 1
COMPACT_STRING_BYTES_MAX: Final = 32767

_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))


def decode_unsigned_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Decode an unsigned varint of at most five bytes."""
    if not 0 <= pos < len(buf):
        raise KafkaWireError(f"an unsigned varint should start at byte {pos}, where the data ends")
    first = buf[pos]
    if first < 0x80:
        return first, pos + 1
    return decode_unsigned_varint_tail(buf, pos + 1, first)


def decode_unsigned_varint_tail(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """Decode the rest of an unsigned varint after its first byte, which has the continuation bit and precedes
    `pos`.
    """
    value = first & 0x7F
    shift = 7
    for _ in range(UNSIGNED_VARINT_BYTES_MAX - 1):
        if pos >= len(buf):
            raise KafkaWireError(f"an unsigned varint runs past the end of the data at byte {pos}")
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0x7FFF_FFFF:
                raise KafkaWireError(f"the unsigned varint before byte {pos} does not fit into 31 bits")
            return value, pos
        shift += 7
    raise KafkaWireError(
        f"an unsigned varint before byte {pos} is longer than {UNSIGNED_VARINT_BYTES_MAX} bytes"
    )


def encode_unsigned_varint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    if not 0 <= value <= 0x7FFF_FFFF:
        raise KafkaEncodeError(f"{value} does not fit into an unsigned varint of 31 bits")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_compact_string_length(length_plus_one: int) -> bytes:
    """Encode the length prefix of a compact string; strings have at most 32767 bytes."""
    if length_plus_one - 1 > COMPACT_STRING_BYTES_MAX:
        raise KafkaEncodeError(
            f"a string of {length_plus_one - 1} bytes is longer than {COMPACT_STRING_BYTES_MAX}"
        )
    return encode_unsigned_varint(length_plus_one)


def decode_varlong(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Decode a zigzag varint or varlong of at most ten bytes that ends at or before `end`."""
    value = shift = 0
    limit = min(end, pos + VARLONG_BYTES_MAX)
    while pos < limit:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            # Ten bytes hold 70 bits, a long has 64. Drop the others, as Java's shift does.
            value &= 0xFFFF_FFFF_FFFF_FFFF
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
    if pos >= end:
        raise KafkaWireError(f"a varint runs past the end of its data at byte {end}")
    raise KafkaWireError(f"the varint before byte {pos} is longer than {VARLONG_BYTES_MAX} bytes")


def decode_varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Decode a zigzag varint of at most five bytes that ends at or before `end`."""
    value, after = decode_varlong(buf, pos, min(end, pos + VARINT_BYTES_MAX))
    if not INT32_MIN <= value <= INT32_MAX:
        # Five bytes hold 35 bits, an int has 32. Drop the others, as Java's shift does.
        zigzag = ((value << 1) ^ (value >> 63)) & 0xFFFF_FFFF
        value = (zigzag >> 1) ^ -(zigzag & 1)
    return value, after


def append_varlong(out: bytearray, value: int) -> None:
    """Append a signed value in zigzag encoding to `out`; varint and varlong have the same encoding."""
    zigzag = (value << 1) ^ (value >> 63)
    if not 0 <= zigzag <= 0xFFFF_FFFF_FFFF_FFFF:
        raise KafkaEncodeError(f"{value} does not fit into a varlong of 64 bits")
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def skip_tagged_fields(buf: Buffer, pos: int, end: int) -> int:
    """Skip a tag buffer by the sizes of its fields. Returns the end position."""
    count, pos = decode_unsigned_varint(buf, pos)
    for _ in range(count):
        _, pos = decode_unsigned_varint(buf, pos)
        size, pos = decode_unsigned_varint(buf, pos)
        pos += size
        if pos > end:
            raise KafkaWireError(
                f"a tagged field of {size} bytes runs {pos - end} bytes past the end of the data"
            )
    return pos
