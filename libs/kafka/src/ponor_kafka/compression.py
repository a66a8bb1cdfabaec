"""The codecs of record batches: gzip, snappy, lz4 and zstd, each with a bound on what it may grow to.

Bytes that do not decompress raise KafkaWireError. So does data that would grow beyond the bound, and it does so without
an allocation beyond the bound: sizes that data claims are checked first, and where none is claimed the output buffer
grows step by step.
"""

import zlib
from enum import IntEnum
from typing import Final

import cramjam

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import Buffer

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_BLOCK_BYTES: Final = 32 * 1024
_XERIAL_HEADER: Final = XERIAL_MAGIC + (1).to_bytes(4, "big") * 2
_GZIP_WINDOW_BITS: Final = 31
_FIRST_GUESS_BYTES_MIN: Final = 64 * 1024
_GROWTH: Final = 4
_OUTPUT_TOO_SMALL: Final = "whole buffer"  # how cramjam says that the output buffer is full


class Codec(IntEnum):
    """The compression of a batch, the lowest three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer) -> bytes:
    """Compress `data` in the framing that Kafka clients read."""
    if codec is Codec.NONE:
        return bytes(data)
    if codec is Codec.GZIP:
        compressor = zlib.compressobj(wbits=_GZIP_WINDOW_BITS)
        return compressor.compress(data) + compressor.flush()
    if codec is Codec.SNAPPY:
        return _compress_xerial(data)
    if codec is Codec.LZ4:
        # The Java client refuses linked blocks, which are the LZ4 library's default.
        lz4 = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
        lz4.compress(bytes(data))
        return bytes(lz4.finish())
    return bytes(cramjam.zstd.compress(bytes(data)))


def decompress(codec: Codec, data: Buffer, output_bytes_max: int) -> Buffer:
    """Decompress `data` into at most `output_bytes_max` bytes.

    Raises KafkaWireError when the data is corrupt, truncated, or would grow beyond the bound.
    """
    if codec is Codec.NONE:
        if len(data) > output_bytes_max:
            raise _too_large(codec, output_bytes_max)
        return data
    try:
        if codec is Codec.GZIP:
            return _decompress_gzip(data, output_bytes_max)
        if codec is Codec.SNAPPY:
            return _decompress_snappy(data, output_bytes_max)
        return _decompress_growing(codec, data, output_bytes_max)
    except (zlib.error, cramjam.DecompressionError) as error:
        raise KafkaWireError(f"the {codec.name.lower()} data is corrupt: {error}") from error


def _too_large(codec: Codec, output_bytes_max: int) -> KafkaWireError:
    return KafkaWireError(f"the {codec.name.lower()} data grows beyond {output_bytes_max} bytes")


def _decompress_gzip(data: Buffer, output_bytes_max: int) -> bytes:
    """One or more gzip members, as GZIPInputStream reads them."""
    parts: list[bytes] = []
    left = output_bytes_max
    while True:
        member = zlib.decompressobj(wbits=_GZIP_WINDOW_BITS)
        parts.append(member.decompress(data, left + 1))
        left -= len(parts[-1])
        if left < 0:
            raise _too_large(Codec.GZIP, output_bytes_max)
        if not member.eof:
            raise KafkaWireError("the gzip data is truncated")
        data = member.unused_data
        if not data:
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[start : start + XERIAL_BLOCK_BYTES])))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, output_bytes_max: int) -> Buffer:
    """Xerial framing when its magic is there, else one raw block, as librdkafka may send."""
    view = memoryview(data)
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        out = bytearray()
        _append_snappy_block(out, view, output_bytes_max)
        return out
    out = bytearray()
    pos = len(_XERIAL_HEADER)
    if pos > len(view):
        raise KafkaWireError("the snappy data ends within its header")
    while pos < len(view):
        size = int.from_bytes(view[pos : pos + 4], "big", signed=True)
        pos += 4
        if not 0 <= size <= len(view) - pos:
            raise KafkaWireError(f"a snappy block claims {size} bytes where {len(view) - pos} are left")
        _append_snappy_block(out, view[pos : pos + size], output_bytes_max)
        pos += size
    return out


def _append_snappy_block(out: bytearray, block: memoryview, output_bytes_max: int) -> None:
    raw = bytes(block)
    if len(out) + cramjam.snappy.decompress_raw_len(raw) > output_bytes_max:
        raise _too_large(Codec.SNAPPY, output_bytes_max)
    out += cramjam.snappy.decompress_raw(raw)


def _decompress_growing(codec: Codec, data: Buffer, output_bytes_max: int) -> Buffer:
    """Frames that need not say how large they become: try with room that grows up to the bound."""
    decompress_into = cramjam.lz4.decompress_into if codec is Codec.LZ4 else cramjam.zstd.decompress_into
    source = bytes(data)
    size = min(max(_GROWTH * len(source), _FIRST_GUESS_BYTES_MIN), output_bytes_max)
    while True:
        out = bytearray(size)
        try:
            written = decompress_into(source, out)
        except cramjam.DecompressionError as error:
            if _OUTPUT_TOO_SMALL not in str(error):
                raise
            if size >= output_bytes_max:
                raise _too_large(codec, output_bytes_max) from error
            size = min(_GROWTH * size, output_bytes_max)
            continue
        return memoryview(out)[:written]
