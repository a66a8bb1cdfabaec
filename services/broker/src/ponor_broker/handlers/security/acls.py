"""CreateAcls, DescribeAcls and DeleteAcls of a broker with an authorizer.

Rules and messages are those of Kafka 4.3.1 (AclApis, AclControlManager).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ponor.controller.v1.session_service_pb2 import CreateAcls, DeleteAcls, Operation, VerifyEpoch
from ponor.metadata.v1.records_pb2 import AclRule
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from ponor_kafka.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from ponor_kafka.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from ponor_metadata.nouns.acls import AclOperation, AclPermission, AclRow, PatternType, ResourceType
from ponor_runtime.identity import DEFAULT_TENANT
from ponor_runtime.turns import in_turns

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.connection import CloseConnectionError
from ponor_broker.security.acl_filters import ANY, UNKNOWN, AclFilter, select
from ponor_broker.security.authorizer import CLUSTER_NAME, Authorizer

CREATIONS_MAX: Final = 10_000
"""Kafka's limit of changes that one request makes."""
FILTERS_MAX: Final = 1_000
NAME_CHARACTERS_MAX: Final = 1_024
_PER_OPERATION: Final = 500
_INVALID: Final = ErrorCode.INVALID_REQUEST
_UNKNOWN_RESULT: Final = "UNKNOWN"


class AclsHandler:
    """Describes ACLs from the authorizer; changes them through the controller."""

    def __init__(self, authorizer: Authorizer, admin: TopicAdmin) -> None:
        self._authorizer = authorizer
        self._admin = admin

    async def describe(self, request: DescribeAclsRequest, _: RequestContext) -> DescribeAclsResponse:
        """Return the ACLs that the filter selects, by resource pattern."""
        wanted = AclFilter(
            request.resource_type_filter,
            request.resource_name_filter,
            request.pattern_type_filter,
            request.principal_filter,
            request.host_filter,
            request.operation,
            request.permission_type,
        )
        _require_readable([wanted])
        resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
        for row in await in_turns(select(self._rows(), wanted)):
            key = row.resource_type, row.name, row.pattern_type
            resource = resources.setdefault(key, DescribeAclsResource(*key, []))
            described = AclDescription(row.principal, row.host, row.operation, row.permission)
            resource.acls.append(described)  # type: ignore[attr-defined]  # the list above
        return DescribeAclsResponse(resources=list(resources.values()))

    async def create(self, request: CreateAclsRequest, _: RequestContext) -> CreateAclsResponse:
        """Create ACLs. Those that exist already are created successfully, as in Kafka."""
        creations = request.creations
        if any(UNKNOWN in _numbers(each) for each in creations):
            raise CloseConnectionError("CreateAcls contains a type, operation or permission 0")
        if len(creations) > CREATIONS_MAX:
            text = f"The request creates {len(creations)} ACLs; create at most {CREATIONS_MAX}."
            return CreateAclsResponse(results=[AclCreationResult(_INVALID, text)] * len(creations))
        problems = [_problem(each) for each in creations]
        valid = [at for at, problem in enumerate(problems) if problem is None]
        results = [AclCreationResult(_INVALID if problem else 0, problem) for problem in problems]
        for begin in range(0, len(valid), _PER_OPERATION):
            part = valid[begin : begin + _PER_OPERATION]
            body = CreateAcls(rules=[_rule(creations[at]) for at in part])
            try:
                await self._admin.submit(Operation(create_acls=body))
            except PartitionError as error:
                for at in part:
                    results[at] = AclCreationResult(error.code, str(error))
        return CreateAclsResponse(results=results)

    async def delete(self, request: DeleteAclsRequest, _: RequestContext) -> DeleteAclsResponse:
        """Delete the ACLs that the filters select."""
        filters = [_filter(each) for each in request.filters]
        _require_readable(filters)
        if len(filters) > FILTERS_MAX:
            text = f"The request has {len(filters)} filters; send at most {FILTERS_MAX}."
            return _refused(filters, _INVALID, text)
        try:
            # The image must show all ACLs that were created before this request, at any broker.
            await self._admin.submit(Operation(verify_epoch=VerifyEpoch()))
            selected = [await self._selected(each) for each in filters]
            deleted = await self._delete({row.acl_id: row for rows in selected for row in rows})
        except PartitionError as error:
            return _refused(filters, error.code, str(error))
        return DeleteAclsResponse(
            filter_results=[
                _filter_result(each, [row for row in rows if row.acl_id in deleted])
                for each, rows in zip(filters, selected, strict=True)
            ]
        )

    async def _selected(self, wanted: AclFilter) -> list[AclRow]:
        return [] if _filter_problem(wanted) else await in_turns(select(self._rows(), wanted))

    async def _delete(self, rows: Mapping[bytes, AclRow]) -> set[bytes]:
        """Delete ACLs; return the ids of those that this request deleted."""
        ids, deleted = list(rows), set[bytes]()
        for begin in range(0, len(ids), _PER_OPERATION):
            body = DeleteAcls(acl_ids=ids[begin : begin + _PER_OPERATION])
            result = await self._admin.submit(Operation(delete_acls=body))
            deleted.update(result.acls_deleted.acl_ids)
        return deleted

    def _rows(self) -> list[AclRow]:
        return list(self._authorizer.rows.values())


def _numbers(creation: AclCreation) -> tuple[int, ...]:
    return (
        creation.resource_type,
        creation.resource_pattern_type,
        creation.operation,
        creation.permission_type,
    )


def _require_readable(filters: Sequence[AclFilter]) -> None:
    if any(each.has_unset for each in filters):
        raise CloseConnectionError("a filter of ACLs contains a type, operation or permission 0")


def _problem(creation: AclCreation) -> str | None:
    """Return why an ACL cannot be created, with Kafka's message."""
    cluster = ResourceType.CLUSTER
    if creation.resource_type == cluster and creation.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not creation.resource_name:
        return "Invalid empty resource name"
    for number, members, what in (
        (creation.resource_type, ResourceType, "resourceType"),
        (creation.resource_pattern_type, PatternType, "patternType"),
        (creation.operation, AclOperation, "operation"),
        (creation.permission_type, AclPermission, "permissionType"),
    ):
        if number not in {int(member) for member in members}:
            is_match = what == "patternType" and number == 2
            name = "ANY" if number == ANY else "MATCH" if is_match else _UNKNOWN_RESULT
            return f"Invalid {what} {name}"
    if ":" not in creation.principal:
        return (
            f"Could not parse principal from `{creation.principal}` (it has no colon between type and name)"
        )
    for text, what in (
        (creation.resource_name, "resource name"),
        (creation.principal, "principal"),
        (creation.host, "host"),
    ):
        if len(text) > NAME_CHARACTERS_MAX:
            return f"The {what} has more than {NAME_CHARACTERS_MAX} characters"
    return None


def _rule(creation: AclCreation) -> AclRule:
    return AclRule(
        tenant_id=DEFAULT_TENANT,
        resource_type=creation.resource_type,
        pattern_type=creation.resource_pattern_type,
        name=creation.resource_name,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission=creation.permission_type,
    )


def _filter(wanted: DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        wanted.resource_type_filter,
        wanted.resource_name_filter,
        wanted.pattern_type_filter,
        wanted.principal_filter,
        wanted.host_filter,
        wanted.operation,
        wanted.permission_type,
    )


def _filter_problem(wanted: AclFilter) -> str | None:
    if wanted.has_unknown_pattern:
        return "Unknown patternFilter."
    return "Unknown entryFilter." if wanted.has_unknown_entry else None


def _filter_result(wanted: AclFilter, rows: Sequence[AclRow]) -> DeleteAclsFilterResult:
    problem = _filter_problem(wanted)
    if problem is not None:
        return DeleteAclsFilterResult(_INVALID, problem)
    return DeleteAclsFilterResult(
        matching_acls=[
            DeleteAclsMatchingAcl(
                resource_type=row.resource_type,
                resource_name=row.name,
                pattern_type=row.pattern_type,
                principal=row.principal,
                host=row.host,
                operation=row.operation,
                permission_type=row.permission,
            )
            for row in rows
        ]
    )


def _refused(filters: Sequence[AclFilter], code: ErrorCode, text: str) -> DeleteAclsResponse:
    return DeleteAclsResponse(filter_results=[DeleteAclsFilterResult(code, text) for _ in filters])
