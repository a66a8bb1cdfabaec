"""Authorization, which is not supported: every operation is authorized (KIP-430), and the ACL APIs
answer SECURITY_DISABLED, as Kafka does without an authorizer.

Clients handle this code: after it, MirrorMaker 2 stops copying ACLs. If the APIs were missing, each of its
attempts would fail.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from ponor_kafka.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from ponor_kafka.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

from ponor_broker.requests.api_handler import RequestContext

OPERATIONS_UNKNOWN: Final = -(1 << 31)
"""Kafka's value for operations that the request did not ask for."""
TOPIC_OPERATIONS: Final = 3576
CLUSTER_OPERATIONS: Final = 8096
DISABLED: Final = ErrorCode.SECURITY_DISABLED
MESSAGE: Final = "No Authorizer is configured."
"""Kafka's message."""


async def describe_acls(_: DescribeAclsRequest, __: RequestContext) -> DescribeAclsResponse:
    """Refuse the request."""
    return DescribeAclsResponse(error_code=DISABLED, error_message=MESSAGE)


async def create_acls(request: CreateAclsRequest, _: RequestContext) -> CreateAclsResponse:
    """Refuse every creation."""
    return CreateAclsResponse(
        results=[AclCreationResult(error_code=DISABLED, error_message=MESSAGE) for _ in request.creations]
    )


async def delete_acls(request: DeleteAclsRequest, _: RequestContext) -> DeleteAclsResponse:
    """Refuse every filter."""
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=DISABLED, error_message=MESSAGE) for _ in request.filters
        ]
    )
