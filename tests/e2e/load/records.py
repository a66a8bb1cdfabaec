"""Records derived from (producer, number), with mixed sizes, keys, nulls and headers, verifiable without
storing them.

The header `id` contains the identity, so that records with null key and value stay identifiable.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from hashlib import blake2b

SIZES = (0, 1, 17, 100, 100, 100, 100, 300, 300, 700, 1024, 1024, 2048, 5000)
LARGE_EVERY = 997
LARGE_BYTES = 60_000


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """One record to produce."""

    producer: str
    number: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def checksum(self) -> int:
        """CRC-32 over everything that a consumer must receive."""
        return checksum(self.key, self.value, self.headers)


def make_record(producer: str, number: int) -> LoadRecord:
    """Build the record with this identity; deterministic."""
    seed = blake2b(f"{producer}/{number}".encode(), digest_size=32).digest()
    size = LARGE_BYTES if number % LARGE_EVERY == 11 else SIZES[seed[0] % len(SIZES)]
    value = None if seed[1] % 50 == 0 else _stretch(seed, size)
    # aiokafka refuses a record with neither key nor value.
    key = None if seed[2] % 4 == 0 and value is not None else seed[3:11]
    headers: list[tuple[str, bytes | None]] = [("id", f"{producer}/{number}".encode())]
    nullable = not producer.startswith("kafka-python")  # its producer accepts only bytes
    for index in range(seed[12] % 3):
        null = nullable and seed[13 + index] % 5 == 0
        headers.append((f"h{index}", None if null else seed[16 : 16 + seed[14] % 12]))
    return LoadRecord(producer, number, key, value, headers)


def identity(headers: list[tuple[str, bytes | None]] | None) -> tuple[str, int]:
    """Return (producer, number) of a consumed record."""
    for name, content in headers or ():
        if name == "id":
            assert content is not None
            producer, _, number = bytes(content).decode().rpartition("/")
            return producer, int(number)
    raise AssertionError(f"a record without identity came back: headers {headers}")


def checksum(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]] | None) -> int:
    """CRC-32 over a record's content; distinguishes None from empty."""
    crc = zlib.crc32(b"n" if key is None else b"k" + bytes(key))
    crc = zlib.crc32(b"n" if value is None else b"v" + bytes(value), crc)
    for name, content in headers or ():
        crc = zlib.crc32(name.encode(), crc)
        crc = zlib.crc32(b"n" if content is None else b"h" + bytes(content), crc)
    return crc


def _stretch(seed: bytes, size: int) -> bytes:
    """Build half compressible content: a repeated seed with a changing middle."""
    repeated = seed * (size // len(seed) + 1)
    return repeated[:size]
