"""gRPC's health checking protocol, so that any probe (Kubernetes, grpcurl) can ask whether a service serves.

Only `Check` is served. A listener serves everything it knows as soon as it is bound, therefore the answer is SERVING or NOT_FOUND.
Source: the GRPC Health Checking Protocol, version 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from ponor.common.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse


def health_handler(methods: Iterable[str]) -> grpc.RpcMethodHandler[bytes, bytes]:
    """A handler of `Check` that knows the services to which `methods` (paths) belong."""
    services = {"", *(path.split("/")[1] for path in methods)}
    serving = HealthCheckResponse(status=HealthCheckResponse.SERVING_STATUS_SERVING).SerializeToString()

    async def check(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        try:
            service = HealthCheckRequest.FromString(request).service
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a HealthCheckRequest")
        if service not in services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {service!r} here")
        return serving

    return grpc.unary_unary_rpc_method_handler(check)
