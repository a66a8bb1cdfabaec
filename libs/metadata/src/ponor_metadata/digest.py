"""Digests: one that runs over the log, so that two images can be compared by 16 bytes; one that names an operation's body."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from ponor.controller.v1.session_service_pb2 import Operation

DIGEST_BYTES: Final = 16
EMPTY_DIGEST: Final = bytes(DIGEST_BYTES)
"""The running digest before the first batch."""


def running_digest(previous: bytes, encoded_batch: bytes) -> bytes:
    """BLAKE2b-128 of the digest before and the batch's bytes as they stand in the log."""
    assert len(previous) == DIGEST_BYTES
    return blake2b(previous + encoded_batch, digest_size=DIGEST_BYTES).digest()


def operation_digest(operation: Operation) -> bytes:
    """BLAKE2b-64 of the body (all but the request id and the trace): equal for a repeat, different when an id is used twice."""
    body = Operation()
    body.CopyFrom(operation)
    body.ClearField("request_id")
    body.ClearField("traceparent")
    return blake2b(body.SerializeToString(deterministic=True), digest_size=8).digest()
