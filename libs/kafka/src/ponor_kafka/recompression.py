"""Recompression of a batch for a topic whose `compression.type` differs from the producer's codec.

Records, offsets and timestamps stay byte for byte; codec bits, length and checksum change.
"""

from __future__ import annotations

from struct import Struct as PackedRun
from typing import Final

from crc32c import crc32c

from ponor_kafka.compression import Codec, compress
from ponor_kafka.primitives import Buffer
from ponor_kafka.record_batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    CRC_POSITION,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    BatchView,
)

_LENGTH: Final = PackedRun(">i")
_LENGTH_POSITION: Final = 8
_ATTRIBUTES: Final = PackedRun(">H")
_CRC: Final = PackedRun(">I")


def recompressed(batch: BatchView, data: Buffer, codec: Codec, level: int | None = None) -> BatchView:
    """Build a new batch with the header of `batch` and `data` (its uncompressed records) compressed with
    `codec`.
    """
    body = compress(codec, data, level)
    out = bytearray(batch.view[:HEADER_BYTES])
    out += body
    _LENGTH.pack_into(out, _LENGTH_POSITION, len(out) - LENGTH_PREFIX_BYTES)
    _ATTRIBUTES.pack_into(out, ATTRIBUTES_POSITION, batch.attributes & ~CODEC_MASK & 0xFFFF | codec)
    view = memoryview(out)
    _CRC.pack_into(out, CRC_POSITION, crc32c(view[ATTRIBUTES_POSITION:]))
    return BatchView(view)
