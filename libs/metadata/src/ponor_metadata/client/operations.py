"""One operation of a session: its digest, and its span in a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Final

from ponor.controller.v1.session_service_pb2 import Operation
from ponor_rpc.methods import SESSION
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.tracing import Attributes, SpanKind

RPC_METHOD: Final = SESSION.lstrip("/")
REQUEST_ID_TAG: Final = 1 << 3
"""The encoded tag of field 1, a varint."""


def operation_digest(operation: Operation) -> bytes:
    """Return the BLAKE2b-64 digest of all fields except request id and trace.

    A retry has the same digest. Another operation under the same id has a different digest.
    """
    return blake2b(_body(operation), digest_size=8).digest()


def _body(operation: Operation) -> bytes:
    """Return the encoding without the request id.

    Fields are encoded in the order of their numbers, so the request id (field 1) comes first and can be cut
    off.
    """
    encoded = operation.SerializeToString(deterministic=True)
    request_id = operation.request_id
    if operation.traceparent:
        return _copied_body(operation)
    if not request_id:
        return encoded
    assert encoded[0] == REQUEST_ID_TAG, "the request id is the first field of an operation"
    return encoded[1 + (request_id.bit_length() + 6) // 7 :]


def _copied_body(operation: Operation) -> bytes:
    body = Operation()
    body.CopyFrom(operation)
    body.ClearField("request_id")
    body.ClearField("traceparent")
    return body.SerializeToString(deterministic=True)


def operation_attributes(operation: Operation) -> Attributes:
    """Return the span attributes of an operation, with OpenTelemetry's RPC names where they exist.

    The controller uses the same attributes.
    """
    return {
        "rpc.system.name": "grpc",
        "rpc.method": RPC_METHOD,
        "ponor.operation": operation.WhichOneof("kind") or "unknown",
    }


@contextmanager
def traced_operation(telemetry: Telemetry, operation: Operation) -> Iterator[Operation]:
    """Yield the operation to send: a copy with the id of a new span if the current task is part of a sampled
    trace, else `operation`.
    """
    tracing = telemetry.tracing
    if tracing is None or (parent := tracing.current()) is None:
        yield operation
        return
    with tracing.span(
        "ponor.session.operation", operation_attributes(operation), kind=SpanKind.CLIENT, parent=parent
    ) as span:
        if span is None:
            yield operation
            return
        named = Operation()
        named.CopyFrom(operation)
        named.traceparent = span.context.traceparent
        yield named
