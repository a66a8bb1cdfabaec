"""An operation as a step of the trace that its node began: the controller's half of `ponor_metadata.operation_trace`.

What lives here: one span from the execution of an operation to its committed answer. Rights, repeats and answers are the executor's.
"""

from __future__ import annotations

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.operations import operation_attributes
from ponor_rpc.errors import error_name
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.tracing import SpanKind, TraceContext

from ponor_controller.kernel.operation import PendingOperation


def traced(pending: PendingOperation, telemetry: Telemetry) -> PendingOperation:
    """The operation, whose answer ends a span when its node is tracing it and this process traces too."""
    parent = TraceContext.parse(pending.operation.traceparent)
    if telemetry.tracing is None or parent is None:
        return pending
    attributes = {
        **operation_attributes(pending.operation),
        "ponor.node.id": pending.caller.node_id,
        "ponor.node.epoch": pending.caller.node_epoch,
    }
    span = telemetry.tracing.begin(
        "ponor.controller.operation", attributes, kind=SpanKind.SERVER, parent=parent
    )
    if span is None:
        return pending

    def answer(encoded: bytes) -> None:
        result = wire.OperationResult.FromString(encoded)
        refused = result.WhichOneof("outcome") == "error"
        span.set({"ponor.commit_index": result.commit_index})
        span.end(error=error_name(result.error.code) if refused else None)
        pending.answer(encoded)

    return pending._replace(answer=answer)
