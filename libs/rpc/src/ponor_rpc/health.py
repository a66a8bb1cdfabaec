"""gRPC health checking protocol, for probes such as Kubernetes and grpcurl.

Only `Check` is served: SERVING or NOT_SERVING for a service of this listener and, under the empty name, for
the process; NOT_FOUND for any other name. Source: the GRPC Health Checking Protocol, version 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from ponor.common.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from ponor_rpc.methods import service_name


def health_handler(
    methods: Iterable[str], serves: Callable[[str], bool] = lambda _: True
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Create a handler of `Check` for the services of `methods` (paths).

    `serves` returns whether the named service serves now.
    """
    services = {"", *map(service_name, methods)}
    statuses = {
        True: HealthCheckResponse(status=HealthCheckResponse.SERVING_STATUS_SERVING).SerializeToString(),
        False: HealthCheckResponse(status=HealthCheckResponse.SERVING_STATUS_NOT_SERVING).SerializeToString(),
    }

    async def check(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        try:
            service = HealthCheckRequest.FromString(request).service
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a HealthCheckRequest")
        if service not in services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {service!r}")
        return statuses[serves(service)]

    return grpc.unary_unary_rpc_method_handler(check)
