"""DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from ponor_kafka.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ponor_kafka.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ponor_runtime.turns import Steps, Turns

from ponor_broker.coordination.shards import ROWS_PER_STEP
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.group import GroupDescription
from ponor_broker.groups.member import Member
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.bounded_gather import bounded_gather

DESCRIBED_PER_STEP: Final = 500
"""Groups and members that one step describes: about 7 ms."""
DELETED_TOGETHER_MAX: Final = 32
"""Groups of a request that are deleted at a time. The first step of each deletion takes about 0.1 ms."""
NOT_FOUND_FROM: Final = 6
"""In earlier versions DescribeGroups reports a missing group with state Dead and no error (KIP-1043)."""
OPERATIONS_UNKNOWN: Final = -(1 << 31)
_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS = 3, 6, 8, 10, 11
GROUP_OPERATIONS: Final = sum(
    1 << bit for bit in (_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
)
"""Codes of `AclOperation` that apply to groups; without authorization all are allowed."""


class GroupAdminHandlers:
    """Handlers for administration tools."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._turns = Turns()

    async def describe(
        self, request: DescribeGroupsRequest, context: RequestContext
    ) -> DescribeGroupsResponse:
        """DescribeGroups."""
        operations = GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_UNKNOWN
        await self._coordinator.shards.decided(request.groups)

        def described() -> Steps[list[DescribedGroup]]:
            groups: list[DescribedGroup] = []
            rows = 0
            for group_id in dict.fromkeys(request.groups):  # each once: it may have thousands of members
                group = self._coordinator.describe_group(group_id)
                groups.append(_described(group_id, group, operations, context.api_version))
                rows += 1 + len(group.members)
                if rows >= DESCRIBED_PER_STEP:
                    rows = 0
                    yield
            return groups

        return DescribeGroupsResponse(groups=await self._turns.run_short(described()))

    async def list_groups(self, request: ListGroupsRequest, _: RequestContext) -> ListGroupsResponse:
        """ListGroups; an empty filter matches everything, and case is ignored."""
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        error, groups = await self._turns.run_short(self._coordinator.list_groups())

        def listed() -> Steps[list[ListedGroup]]:
            rows: list[ListedGroup] = []
            for number, group in enumerate(groups, 1):
                kind = group.group_type
                if (not states or group.state.lower() in states) and (not types or kind in types):
                    rows.append(ListedGroup(group.group_id, group.protocol_type, str(group.state), kind))
                if number % ROWS_PER_STEP == 0:
                    yield
            return rows

        return ListGroupsResponse(error_code=error, groups=await self._turns.run_short(listed()))

    async def delete(self, request: DeleteGroupsRequest, _: RequestContext) -> DeleteGroupsResponse:
        """DeleteGroups."""
        names = list(dict.fromkeys(request.groups_names))
        errors = await bounded_gather(
            map(self._coordinator.delete_group, names), together_max=DELETED_TOGETHER_MAX
        )
        return DeleteGroupsResponse(
            results=[
                DeletableGroupResult(name, error, None if error is ErrorCode.NONE else error.meaning)
                for name, error in zip(names, errors, strict=True)
            ]
        )


def _described(group_id: str, group: GroupDescription, operations: int, version: int) -> DescribedGroup:
    if group.error is ErrorCode.GROUP_ID_NOT_FOUND:
        is_error = version >= NOT_FOUND_FROM
        return DescribedGroup(
            error_code=group.error if is_error else ErrorCode.NONE,
            error_message=f"Group {group_id} not found." if is_error else None,
            group_id=group_id,
            group_state=str(GroupState.DEAD),
            authorized_operations=operations,
        )
    if group.error is not ErrorCode.NONE:
        return DescribedGroup(error_code=group.error, group_id=group_id)
    return DescribedGroup(
        group_id=group_id,
        group_state=str(group.state),
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name or "",
        members=[_described_member(member, group.protocol_name) for member in group.members],
        authorized_operations=operations,
    )


def _described_member(member: Member, protocol_name: str | None) -> DescribedGroupMember:
    """Describe a member. As in Kafka, subscriptions are shown only for a stable group: before that, the
    protocol that decodes them is not decided.
    """
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=b"" if protocol_name is None else member.metadata_for(protocol_name),
        member_assignment=member.assignment,
    )
