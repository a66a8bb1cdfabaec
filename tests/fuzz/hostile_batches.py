"""Random record batches with hostile fields, of which a broker accepts a good part in Produce requests."""

from __future__ import annotations

import gzip
import random
import struct
from typing import Final

import cramjam
from crc32c import crc32c
from ponor_kafka.compression import Codec, compress
from ponor_kafka.record_batch import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    CRC_POSITION,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    MAGIC_POSITION,
)
from ponor_kafka.record_rules import INT64_MAX, INT64_MIN

NOW_MS: Final = 1_000_000
TIMES: Final = (0, -1, -2, 1, NOW_MS, NOW_MS + 1, 1 << 31, 1 << 53, -(1 << 53), INT64_MAX, INT64_MIN)
NEAR: Final = 3
RARELY: Final = 0.01
RECORDS_MAX: Final = 6
MAGIC_END: Final = MAGIC_POSITION + 1
_ATTRIBUTES: Final = (0x08, 0x10, 0x40, 0x80, 0x100, 0x4000, 0x8000)
"""Timestamp type, transactional, delete horizon, and unused bits."""
_KEYS: Final = (b"a", b"b", b"", b"c" * 40, b"\xff\xfe")
_PRODUCERS: Final = (*(-1, 0, 1, 7, INT64_MAX) * 4, INT64_MIN)


def hostile_batch(rng: random.Random) -> bytes:
    """One batch with a matching length and checksum."""
    count = rng.randint(1, RECORDS_MAX)
    data = b"".join(_record(rng, index) for index in range(count))
    codec = rng.choice((Codec.NONE, *Codec))
    attributes = codec
    for bit in _ATTRIBUTES:
        if rng.random() < 0.2:
            attributes |= bit
    if rng.random() < RARELY:
        attributes ^= rng.randrange(1 << 16)
    producer_id = rng.choice(_PRODUCERS)
    low = -1 if rng.random() < RARELY else 0
    header = BATCH_HEADER.pack(
        0,
        0,
        rng.choice((-1, 0, (1 << 31) - 1)),
        MAGIC,
        0,
        (attributes ^ 0x8000) - 0x8000,
        count - 1 + _rarely_off(rng),
        _time(rng),
        _time(rng),
        producer_id,
        rng.choice((0, 1, (1 << 15) - 1, low)),
        rng.choice((0, 1, (1 << 31) - 1, (1 << 31) - 2, low)),
        count + _rarely_off(rng),
    )
    return sealed(header + _body(rng, codec, data))


def sealed(batch: bytes) -> bytes:
    """Set length, magic and checksum, so that damage elsewhere is not refused for them."""
    if len(batch) < HEADER_BYTES:
        return batch
    out = bytearray(batch)
    struct.pack_into(">qi", out, 0, 0, len(out) - LENGTH_PREFIX_BYTES)
    out[MAGIC_POSITION] = MAGIC
    struct.pack_into(">I", out, CRC_POSITION, crc32c(out[ATTRIBUTES_POSITION:]))
    return bytes(out)


def _rarely_off(rng: random.Random) -> int:
    return rng.choice((-1, 1, 1 << 20)) if rng.random() < RARELY else 0


def _time(rng: random.Random) -> int:
    time_ms = rng.choice(TIMES) + rng.randint(-NEAR, NEAR)
    return min(max(time_ms, INT64_MIN), INT64_MAX)


def _record(rng: random.Random, index: int) -> bytes:
    delta = rng.choice((0, index, _time(rng)))
    body = bytes((rng.choice((0, rng.randrange(256))),)) + number(rng, delta, 64)
    body += number(rng, index + _rarely_off(rng), 32)
    body += _nullable(rng, rng.choice((*_KEYS, None)) if rng.random() < 0.2 else rng.choice(_KEYS))
    body += _nullable(rng, rng.choice((None, b"", b"v", bytes(300))))
    headers = rng.choice((0, 0, 1, 3))
    body += number(rng, headers, 32)
    for _ in range(headers):
        body += _nullable(rng, rng.choice((*_KEYS, None) if rng.random() < RARELY else _KEYS))
        body += _nullable(rng, rng.choice((None, b"", b"v")))
    return number(rng, len(body) + _rarely_off(rng), 32) + body


def _nullable(rng: random.Random, content: bytes | None) -> bytes:
    if content is None:
        return number(rng, rng.choice((-1, -1, -2, -(1 << 31))), 32)
    return number(rng, len(content), 32) + content


def number(rng: random.Random, value: int, bits: int) -> bytes:
    """A zigzag number, sometimes with more bytes than needed, or with bits that its type does not have."""
    zigzag = ((value << 1) ^ (value >> 63)) & ((1 << bits) - 1)
    width_max = -(-bits // 7)
    width = max(1, -(-zigzag.bit_length() // 7))
    if rng.random() < 0.2:
        width = rng.randint(width, width_max)
        if width == width_max:
            zigzag |= rng.getrandbits(7 * width_max - bits) << bits
    if rng.random() < RARELY / 10:
        width += 1
    groups = [zigzag >> (7 * at) & 0x7F for at in range(width)]
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])


def _body(rng: random.Random, codec: Codec, data: bytes) -> bytes:
    if codec is Codec.NONE:
        return data
    if rng.random() < 0.5:
        return compress(codec, data)
    parts = [data]
    if rng.random() < 0.5:
        middle = rng.randrange(len(data) + 1)
        parts = [data[:middle], data[middle:]]
    if rng.random() < 0.3:
        parts.insert(rng.randrange(len(parts) + 1), b"")
    body = b"".join(_frame(rng, codec, part) for part in parts)
    return body + rng.choice((b"", b"", b"\0", b"\0" * 8, rng.randbytes(5)))


def _frame(rng: random.Random, codec: Codec, data: bytes) -> bytes:
    match codec:
        case Codec.GZIP:
            return gzip.compress(data, rng.choice((0, 1, 9)), mtime=rng.getrandbits(31))
        case Codec.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data)) if rng.random() < 0.5 else compress(codec, data)
        case Codec.LZ4:
            lz4 = cramjam.lz4.Compressor(
                level=rng.choice((None, 9)),
                content_checksum=rng.random() < 0.5,
                block_linked=rng.random() < RARELY,
            )
            lz4.compress(data)
            return bytes(lz4.finish())
        case _:
            skippable = struct.pack("<II", 0x184D2A50 + rng.randrange(16), 3) + b"abc"
            return (skippable if rng.random() < 0.3 else b"") + bytes(cramjam.zstd.compress(data))
