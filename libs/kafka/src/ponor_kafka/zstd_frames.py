"""Bounds of the decompressed size of zstd data, from its block headers alone (RFC 8878, 3.1.1).

Raw and repeated blocks state their exact size; a compressed block has at most 128 KiB. Within microseconds
this detects the usual decompression bomb, endless repeated bytes, and gives the buffer size for valid data.
The headers are not trusted: the decompressor checks every limit again.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final, NamedTuple

from ponor_kafka.primitives import Buffer

MAGIC: Final = 0xFD2FB528
SKIPPABLE_MAGIC: Final = 0x184D2A50
BLOCK_BYTES_MAX: Final = 128 << 10
BLOCKS_MAX: Final = 4_096
"""Maximum number of blocks examined: half a gigabyte of normal data. Data with more, tiny blocks is left to
the decompressor, which is faster."""
BLOCK_HEADER_BYTES: Final = 3
_RAW, _REPEATED, _COMPRESSED = range(3)
_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)

_U32: Final = Struct("<I")


class OutputBounds(NamedTuple):
    """Bounds of the decompressed size in bytes. `at_most` is None if unknown."""

    at_least: int
    at_most: int | None


def output_bounds(data: Buffer, enough_bytes: int) -> OutputBounds:
    """Compute bounds of the decompressed size. Stop once `at_least` exceeds `enough_bytes`. Never raises."""
    view = memoryview(data)
    at_least = at_most = at = blocks = 0
    try:
        while at < len(view):
            (magic,) = _U32.unpack_from(view, at)
            if magic & 0xFFFF_FFF0 == SKIPPABLE_MAGIC:
                at += 8 + _U32.unpack_from(view, at + 4)[0]
                continue
            if magic != MAGIC:
                break
            descriptor = view[at + 4]
            at = _first_block(at, descriptor)
            is_last = False
            while not is_last:
                header = view[at] | view[at + 1] << 8 | view[at + 2] << 16
                is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
                exact = min(size, BLOCK_BYTES_MAX)
                at_least += 0 if kind == _COMPRESSED else exact
                at_most += BLOCK_BYTES_MAX if kind == _COMPRESSED else exact
                at += BLOCK_HEADER_BYTES + (1 if kind == _REPEATED else size)
                blocks += 1
                if at_least > enough_bytes or blocks > BLOCKS_MAX or kind > _COMPRESSED:
                    return OutputBounds(at_least, None)
            at += 4 if descriptor & 4 else 0  # the content's checksum
    except (IndexError, error):
        return OutputBounds(at_least, None)  # truncated: the decompressor reports it
    return OutputBounds(at_least, at_most)


def _first_block(frame_at: int, descriptor: int) -> int:
    """Position of a frame's first block."""
    is_single_segment = bool(descriptor & 0x20)
    content_size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6]
    if is_single_segment and not content_size_bytes:
        content_size_bytes = 1
    window_bytes = 0 if is_single_segment else 1
    return frame_at + 5 + window_bytes + _DICTIONARY_ID_BYTES[descriptor & 3] + content_size_bytes
