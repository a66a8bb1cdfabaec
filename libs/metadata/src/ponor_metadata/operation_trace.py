"""An operation as a step of the trace that asked for it: the caller's span, and its name on the wire.

What lives here: the client half; the controller's half is `ponor_controller.kernel.operation_trace`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ponor.controller.v1.session_service_pb2 import Operation
from ponor_rpc.methods import SESSION
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.tracing import Attributes, SpanKind

RPC_METHOD: Final = SESSION.lstrip("/")


def operation_attributes(operation: Operation) -> Attributes:
    """What both sides say of an operation, in OpenTelemetry's terms for RPC where it has some."""
    return {
        "rpc.system.name": "grpc",
        "rpc.method": RPC_METHOD,
        "ponor.operation": operation.WhichOneof("kind") or "unknown",
    }


@contextmanager
def traced_operation(telemetry: Telemetry, operation: Operation) -> Iterator[Operation]:
    """The operation to send: itself, or a copy that names a span when the current task is part of a sampled trace."""
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
