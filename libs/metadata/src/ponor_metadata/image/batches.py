"""Encoded batches of the log: the running digest, and a summary without decoding the records."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import Final

from ponor.metadata.v1.records_pb2 import Record, RecordBatch

from ponor_metadata.image import plain_records_native

DIGEST_BYTES: Final = 16
EMPTY_DIGEST: Final = bytes(DIGEST_BYTES)
"""The running digest before the first batch."""

Contents = tuple[int, int, dict[int, int]]
"""Index, term, and the number of records of each kind by the kind's field number in Record, ascending."""

KINDS: Final = {field.number: field.name for field in Record.DESCRIPTOR.oneofs_by_name["kind"].fields}
"""Names of the record kinds of this build."""
UNKNOWN_KIND: Final = 0
_NUMBERS: Final = {name: number for number, name in KINDS.items()}


def running_digest(previous: bytes, encoded_batch: bytes) -> bytes:
    """Return the BLAKE2b-128 digest of the previous digest and the batch's bytes in the log. Images with
    equal running digests are equal.
    """
    assert len(previous) == DIGEST_BYTES
    return blake2b(previous + encoded_batch, digest_size=DIGEST_BYTES).digest()


def contents_of(encoded: bytes) -> Contents:
    """Return the contents of an encoded batch.

    Raises:
        DecodeError: the bytes are not a batch.
    """
    contents = plain_records_native.contents_of(encoded)
    return decoded_contents_of(encoded) if contents is None else contents


def decoded_contents_of(encoded: bytes) -> Contents:
    """Return the contents, decoded by protobuf, which accepts every valid encoding of a batch."""
    batch = RecordBatch.FromString(encoded)
    kinds = Counter(_NUMBERS.get(record.WhichOneof("kind") or "", UNKNOWN_KIND) for record in batch.records)
    return batch.index, batch.term, dict(sorted(kinds.items()))
