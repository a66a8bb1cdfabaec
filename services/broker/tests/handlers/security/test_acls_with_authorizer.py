"""CreateAcls, DescribeAcls and DeleteAcls with an authorizer, in addition to the comparison with Kafka
(tests/tools/test_acls.py): operations, refusals of the controller, bounds, unreadable requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from ponor.controller.v1.session_service_pb2 import Operation, OperationResult
from ponor_broker.handlers.security.acls import CREATIONS_MAX, FILTERS_MAX, AclsHandler
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.requests.connection import CloseConnectionError
from ponor_broker.security.authorizer import Authorizer
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_acls import AclCreation, CreateAclsRequest
from ponor_kafka.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ponor_kafka.messages.describe_acls import DescribeAclsRequest
from ponor_metadata.nouns.acls import AclRow, acl_row

from services.broker.tests.image_kit import context
from services.broker.tests.security.test_authorizer import loaded, rule

ANY, TOPIC, LITERAL, READ, ALLOW = 1, 2, 3, 3, 3
INVALID = ErrorCode.INVALID_REQUEST


class Controller:
    """Records operations; deletes all ACLs that it is asked to delete."""

    def __init__(self, refuse: Callable[[Operation], bool] = lambda _: False) -> None:
        self.operations: list[Operation] = []
        self._refuse = refuse

    async def submit(self, operation: Operation) -> OperationResult:
        self.operations.append(operation)
        if self._refuse(operation):
            raise PartitionError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
        result = OperationResult()
        result.acls_deleted.acl_ids.extend(operation.delete_acls.acl_ids)
        return result

    @property
    def kinds(self) -> list[str | None]:
        return [each.WhichOneof("kind") for each in self.operations]


def handler(controller: Controller, *names: str) -> AclsHandler:
    authorizer = loaded(Authorizer(), *map(rule, names))
    return AclsHandler(authorizer, cast("TopicAdmin", controller))


def row(name: str) -> AclRow:
    return acl_row(rule(name))


def creation(name: str, kind: int = TOPIC) -> AclCreation:
    return AclCreation(kind, name, LITERAL, "User:alice", "*", READ, ALLOW)


def filter_of(name: str | None, kind: int = ANY) -> DeleteAclsFilter:
    return DeleteAclsFilter(kind, name, ANY, None, None, ANY, ANY)


async def created(handles: AclsHandler, *creations: AclCreation) -> list[int]:
    answer = await handles.create(CreateAclsRequest(list(creations)), context(3))
    return [each.error_code for each in answer.results]


async def test_creations_are_sent_in_operations_of_bounded_size() -> None:
    controller = Controller()
    handles = handler(controller)
    creations = [creation(f"topic {number}") for number in range(1_001)]
    assert await created(handles, *creations, creation("")) == [0] * 1_001 + [INVALID]
    assert [len(each.create_acls.rules) for each in controller.operations] == [500, 500, 1]
    assert controller.operations[0].create_acls.rules[7] == rule("topic 7")
    assert await created(handles, *[creation("x")] * (CREATIONS_MAX + 1)) == [INVALID] * (CREATIONS_MAX + 1)
    assert len(controller.operations) == 3


async def test_a_failed_operation_is_the_error_of_its_creations() -> None:
    controller = Controller(lambda operation: len(operation.create_acls.rules) == 1)
    creations = [creation(f"topic {number}") for number in range(501)]
    codes = await created(handler(controller), *creations)
    assert codes == [0] * 500 + [ErrorCode.REQUEST_TIMED_OUT]


async def test_deletions_follow_a_confirmation_that_the_image_is_current() -> None:
    controller = Controller()
    names = [f"topic {number}" for number in range(501)]
    request = DeleteAclsRequest([filter_of(None, TOPIC), filter_of("topic 3")])
    answer = await handler(controller, *names).delete(request, context(3))
    assert controller.kinds == ["verify_epoch", "delete_acls", "delete_acls"]
    ids = [acl_id for each in controller.operations for acl_id in each.delete_acls.acl_ids]
    assert sorted(ids) == sorted(row(name).acl_id for name in names), "each ACL is deleted once"
    first, second = answer.filter_results
    assert sorted(each.resource_name for each in first.matching_acls) == sorted(names)
    assert [each.resource_name for each in second.matching_acls] == ["topic 3"]


async def test_an_acl_that_another_request_deleted_is_not_in_the_answer() -> None:
    class Late(Controller):
        async def submit(self, operation: Operation) -> OperationResult:
            await super().submit(operation)
            return OperationResult()

    answer = await handler(Late(), "a").delete(DeleteAclsRequest([filter_of("a")]), context(3))
    assert [list(each.matching_acls) for each in answer.filter_results] == [[]]


async def test_failures_and_bounds_of_deletions() -> None:
    controller = Controller(lambda _: True)
    answer = await handler(controller, "a").delete(DeleteAclsRequest([filter_of("a")] * 2), context(3))
    assert [each.error_code for each in answer.filter_results] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    many = DeleteAclsRequest([filter_of("a")] * (FILTERS_MAX + 1))
    answer = await handler(Controller(), "a").delete(many, context(3))
    assert {each.error_code for each in answer.filter_results} == {INVALID}


async def test_unreadable_requests_close_the_connection_as_in_kafka() -> None:
    handles = handler(Controller())
    with pytest.raises(CloseConnectionError):
        await created(handles, creation("a"), creation("a", kind=0))
    with pytest.raises(CloseConnectionError):
        await handles.delete(DeleteAclsRequest([filter_of("a", kind=0)]), context(3))
    with pytest.raises(CloseConnectionError):
        await handles.describe(DescribeAclsRequest(ANY, None, 0, None, None, ANY, ANY), context(3))


async def test_descriptions_are_grouped_by_pattern() -> None:
    other = rule("a", principal="User:bob")
    authorizer = loaded(Authorizer(), rule("a"), rule("b"), other)
    handles = AclsHandler(authorizer, cast("TopicAdmin", Controller()))
    request = DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY)
    answer = await handles.describe(request, context(3))
    described = {each.resource_name: sorted(acl.principal for acl in each.acls) for each in answer.resources}
    assert described == {"a": ["User:alice", "User:bob"], "b": ["User:alice"]}
