"""ACLs of a cluster without an authorizer: Kafka's answer, which clients know."""

from __future__ import annotations

from ponor_broker.handlers.authorization import MESSAGE, acl_handlers
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.connection import ConnectionContext
from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from ponor_kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from ponor_kafka.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

HANDLERS = {row.key: row for row in acl_handlers()}
CONTEXT = RequestContext(3, "client", ConnectionContext("peer:1"))


async def test_acls_are_disabled_in_a_result_for_everything_that_is_asked() -> None:
    described = await HANDLERS[ApiKey.DESCRIBE_ACLS].handle(DescribeAclsRequest(), CONTEXT)
    assert isinstance(described, DescribeAclsResponse)
    assert (described.error_code, described.error_message) == (ErrorCode.SECURITY_DISABLED, MESSAGE)
    assert not described.resources

    created = await HANDLERS[ApiKey.CREATE_ACLS].handle(CreateAclsRequest([AclCreation()] * 3), CONTEXT)
    assert isinstance(created, CreateAclsResponse)
    assert [each.error_code for each in created.results] == [ErrorCode.SECURITY_DISABLED] * 3

    deleted = await HANDLERS[ApiKey.DELETE_ACLS].handle(DeleteAclsRequest([DeleteAclsFilter()] * 2), CONTEXT)
    assert isinstance(deleted, DeleteAclsResponse)
    assert [each.error_code for each in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED] * 2
