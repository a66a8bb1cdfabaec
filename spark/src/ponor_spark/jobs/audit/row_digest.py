"""Digest of a set of rows, independent of their order: the sum of one digest per row.

A row is encoded unambiguously: offset, timestamp in milliseconds, and number of headers; then key, value, and
name and value of each header, each with its length (−1 for null). A missing or duplicate row changes the sum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import pyarrow as pa

from ponor_spark.jobs.audit.findings import DIGEST_MODULUS

COLUMNS: Final = ("offset", "timestamp", "key", "value", "headers")
DIGEST_BYTES: Final = 16
_HEAD: Final = struct.Struct(">qqi")
_LENGTH: Final = struct.Struct(">i")


def digest_row(
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]] | None,
) -> int:
    """Return the digest of one row. No headers and null headers are the same."""
    parts = [_HEAD.pack(offset, timestamp_ms, len(headers or ()))]
    fields = [key, value, *(each for name, content in headers or () for each in (name.encode(), content))]
    for each in fields:
        parts.append(_LENGTH.pack(-1 if each is None else len(each)))
        if each is not None:
            parts.append(each)
    return int.from_bytes(blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest(), "big")


def digest_batch(batch: pa.RecordBatch) -> int:
    """Return the digest of all rows of a batch with COLUMNS."""
    offsets = batch.column("offset").to_pylist()
    millis = [micros // 1000 for micros in batch.column("timestamp").cast(pa.int64()).to_pylist()]
    headers = batch.column("headers").to_pylist()
    rows = zip(
        offsets,
        millis,
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        headers,
        strict=True,
    )
    return total(
        digest_row(
            offset,
            at,
            key,
            value,
            None if found is None else [(each["key"], each["value"]) for each in found],
        )
        for offset, at, key, value, found in rows
    )


def total(digests: Iterable[int]) -> int:
    """Add up the digests of a set of rows."""
    return sum(digests) % DIGEST_MODULUS
