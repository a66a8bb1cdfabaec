"""ACL APIs answer SECURITY_DISABLED, as Kafka does without an authorizer."""

from __future__ import annotations

from ponor_broker.handlers.authorization import MESSAGE, create_acls, delete_acls, describe_acls
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.connection import ConnectionContext
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_acls import AclCreation, CreateAclsRequest
from ponor_kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ponor_kafka.messages.describe_acls import DescribeAclsRequest

CONTEXT = RequestContext(3, "client", ConnectionContext("peer:1"))


async def test_acl_apis_refuse_every_row() -> None:
    described = await describe_acls(DescribeAclsRequest(), CONTEXT)
    assert (described.error_code, described.error_message) == (ErrorCode.SECURITY_DISABLED, MESSAGE)
    assert not described.resources

    created = await create_acls(CreateAclsRequest([AclCreation()] * 3), CONTEXT)
    assert [each.error_code for each in created.results] == [ErrorCode.SECURITY_DISABLED] * 3

    deleted = await delete_acls(DeleteAclsRequest([DeleteAclsFilter()] * 2), CONTEXT)
    assert [each.error_code for each in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED] * 2
