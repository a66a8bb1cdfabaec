"""Digests: one that runs over the log, so that two images can be compared by 16 bytes; one that names an operation's body."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from ponor.controller.v1.session_service_pb2 import Operation

DIGEST_BYTES: Final = 16
EMPTY_DIGEST: Final = bytes(DIGEST_BYTES)
"""The running digest before the first batch."""
REQUEST_ID_TAG: Final = 1 << 3
"""Field 1, a varint."""


def running_digest(previous: bytes, encoded_batch: bytes) -> bytes:
    """BLAKE2b-128 of the digest before and the batch's bytes as they stand in the log."""
    assert len(previous) == DIGEST_BYTES
    return blake2b(previous + encoded_batch, digest_size=DIGEST_BYTES).digest()


def operation_digest(operation: Operation) -> bytes:
    """BLAKE2b-64 of the body (all but the request id and the trace): equal for a repeat, different when an id is used twice."""
    return blake2b(_body(operation), digest_size=8).digest()


def _body(operation: Operation) -> bytes:
    """The encoding without the request id that leads it: fields are encoded in the order of their numbers, and no copy is needed to leave it out."""
    encoded = operation.SerializeToString(deterministic=True)
    request_id = operation.request_id
    if operation.traceparent:
        return _copied_body(operation)
    if not request_id:
        return encoded
    assert encoded[0] == REQUEST_ID_TAG, "the request id leads an operation"
    return encoded[1 + (request_id.bit_length() + 6) // 7 :]


def _copied_body(operation: Operation) -> bytes:
    body = Operation()
    body.CopyFrom(operation)
    body.ClearField("request_id")
    body.ClearField("traceparent")
    return body.SerializeToString(deterministic=True)
