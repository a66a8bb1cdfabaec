"""Compression codecs of record batches: gzip, snappy, lz4 and zstd, with limits on the decompressed size.

Corrupt data and data that exceeds the limit raise KafkaWireError. No allocation exceeds the limit: if the
data states its size, the size is checked first; otherwise the output buffer grows in steps. Callers that
decompress often pass a scratch buffer to avoid allocations.
"""

import zlib
from enum import IntEnum
from typing import Final

import cramjam

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import Buffer
from ponor_kafka.zstd_frames import output_bounds

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_BLOCK_BYTES: Final = 32 * 1024
_XERIAL_HEADER: Final = XERIAL_MAGIC + (1).to_bytes(4, "big") * 2
_GZIP_WINDOW_BITS: Final = 31
_GZIP_PIECE_BYTES: Final = 1 << 20
_FIRST_GUESS_BYTES_MIN: Final = 64 * 1024
_GROWTH: Final = 4
_SNAPPY_RATIO_MAX: Final = 64
"""Limit of the format: an element of three bytes copies at most 64 bytes."""
_OUTPUT_TOO_SMALL: Final = "whole buffer"  # cramjam's error when the output buffer is full


class Codec(IntEnum):
    """Compression of a batch: the lowest three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data` in the framing of Kafka clients.

    `level` is codec-specific, as in Kafka's `compression.*.level`; None, or -1 for gzip, is the default.
    Snappy has no levels.
    """
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        compressor = zlib.compressobj(-1 if level is None else level, wbits=_GZIP_WINDOW_BITS)
        return compressor.compress(data) + compressor.flush()
    if codec is Codec.SNAPPY:
        return _compress_xerial(data)
    if codec is Codec.LZ4:
        # The Java client rejects linked blocks, which are the LZ4 library's default.
        lz4 = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        lz4.compress(bytes(data))
        return bytes(lz4.finish())
    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(codec: Codec, data: Buffer, output_bytes_max: int, scratch: bytearray | None = None) -> Buffer:
    """Decompress `data` into at most `output_bytes_max` bytes.

    The result may be a view of `scratch`; it is valid until `scratch` is used again.

    Raises KafkaWireError if the data is corrupt, truncated or exceeds the limit.
    """
    if codec is Codec.NONE:
        if len(data) > output_bytes_max:
            raise _too_large(codec, output_bytes_max)
        return data
    try:
        if codec is Codec.GZIP:
            return _decompress_gzip(data, output_bytes_max)
        if codec is Codec.SNAPPY:
            return _decompress_snappy(data, output_bytes_max, scratch)
        return _decompress_growing(codec, data, output_bytes_max, scratch)
    except (zlib.error, cramjam.DecompressionError) as error:
        failure = f"the {codec.name.lower()} data is corrupt: {error}"
    except KafkaWireError as error:
        failure = str(error)
    # Raise outside the `except` block: a chained exception would keep the decompressor's stack frames, and so
    # their buffers, in memory.
    raise KafkaWireError(failure)


def _too_large(codec: Codec, output_bytes_max: int) -> KafkaWireError:
    return KafkaWireError(f"the {codec.name.lower()} data grows beyond {output_bytes_max} bytes")


def _decompress_gzip(data: Buffer, output_bytes_max: int) -> Buffer:
    """Decompress one or more gzip members, like GZIPInputStream, in pieces."""
    out = bytearray()
    while True:
        member = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        is_whole = False
        while not is_whole:
            room = output_bytes_max - len(out)
            piece = member.decompress(data, min(room + 1, _GZIP_PIECE_BYTES))
            if len(piece) > room:
                raise _too_large(Codec.GZIP, output_bytes_max)
            is_whole = member.eof
            if not piece and not is_whole:
                raise KafkaWireError("the gzip data is truncated")
            data = member.unconsumed_tail
            if is_whole and not out and not member.unused_data:
                return piece
            out += piece
        data = member.unused_data
        if not data:
            return out


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, output_bytes_max: int, scratch: bytearray | None) -> Buffer:
    """Decompress Xerial framing if its magic is present, otherwise one raw block, as librdkafka may send."""
    view = memoryview(data)
    blocks = _xerial_blocks(view) if bytes(view[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC else [view]
    size = sum(cramjam.snappy.decompress_raw_len(block) for block in blocks)
    if size > output_bytes_max:
        raise _too_large(Codec.SNAPPY, output_bytes_max)
    if size > len(view) * _SNAPPY_RATIO_MAX:
        raise KafkaWireError(f"{len(view)} bytes of snappy data claim to be {size}")
    out = memoryview(scratch if scratch is not None and size <= len(scratch) else bytearray(size))
    pos = 0
    for block in blocks:
        pos += cramjam.snappy.decompress_raw_into(block, out[pos:size])
    return out[:pos]


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    blocks = []
    pos = len(_XERIAL_HEADER)
    if pos > len(view):
        raise KafkaWireError("the snappy data ends within its header")
    while pos < len(view):
        size = int.from_bytes(view[pos : pos + 4], "big", signed=True)
        pos += 4
        if not 0 <= size <= len(view) - pos:
            raise KafkaWireError(f"a snappy block claims {size} bytes, but only {len(view) - pos} are left")
        blocks.append(view[pos : pos + size])
        pos += size
    return blocks


def _zstd_room(data: Buffer, guess_bytes: int, output_bytes_max: int) -> int:
    """Buffer size for data that does not fit into the scratch buffer.

    Raises KafkaWireError if the data certainly exceeds the limit.
    """
    bounds = output_bounds(data, output_bytes_max)
    if bounds.at_least > output_bytes_max:
        raise _too_large(Codec.ZSTD, output_bytes_max)
    return guess_bytes if bounds.at_most is None else min(max(bounds.at_most, 1), output_bytes_max)


def _decompress_growing(
    codec: Codec, data: Buffer, output_bytes_max: int, scratch: bytearray | None
) -> Buffer:
    """Decompress frames that may lack a content size: retry with a larger buffer, up to the limit."""
    decompress_into = cramjam.lz4.decompress_into if codec is Codec.LZ4 else cramjam.zstd.decompress_into
    size = min(max(_GROWTH * len(data), _FIRST_GUESS_BYTES_MIN), output_bytes_max)
    while True:
        if scratch is not None and size <= len(scratch):
            out, size = memoryview(scratch)[:output_bytes_max], min(len(scratch), output_bytes_max)
        else:
            if codec is Codec.ZSTD:
                size = _zstd_room(data, size, output_bytes_max)
            out = memoryview(bytearray(size))
        try:
            written = decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if _OUTPUT_TOO_SMALL not in str(error):
                raise
            if size >= output_bytes_max:
                raise _too_large(codec, output_bytes_max) from error
            size = min(_GROWTH * size, output_bytes_max)
            out.release()
            continue
        return out[:written]
