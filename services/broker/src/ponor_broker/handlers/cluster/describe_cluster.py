"""DescribeCluster: the brokers, for administrators (KIP-700)."""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

from ponor_broker.handlers.authorization import CLUSTER_OPERATIONS, OPERATIONS_UNKNOWN
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import RequestContext

BROKERS: Final = 1
CONTROLLERS: Final = 2
"""The other endpoint type; Kafka clients cannot connect to the controllers."""


async def describe_cluster(
    topics: Topics, node_id: int, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """Return brokers, including fenced ones if requested."""
    if request.endpoint_type == CONTROLLERS:
        return _refused(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type"
            " CONTROLLER",
        )
    if request.endpoint_type != BROKERS:
        return _refused(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}"
        )
    listener = context.connection.listener
    brokers = [DescribeClusterBroker(*broker) for broker in topics.brokers(listener)]
    if request.include_fenced_brokers:
        fenced = topics.brokers(listener, fenced=True)
        brokers += [DescribeClusterBroker(*broker, is_fenced=True) for broker in fenced]
    return DescribeClusterResponse(
        cluster_id=topics.cluster_id or "",
        controller_id=node_id,
        brokers=brokers,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else OPERATIONS_UNKNOWN
        ),
    )


def _refused(code: ErrorCode, message: str) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=code, error_message=message, endpoint_type=BROKERS)
