"""ConsumerGroupDescribe: epochs, members and assignments of consumer groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from ponor_runtime.turns import Steps, Turns

from ponor_broker.coordination.ports import TopicDirectory
from ponor_broker.groups.consumer.assignment import Partitions, plain, united
from ponor_broker.groups.consumer.membership import ConsumerMembership
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.handlers.groups.group_admin import GROUP_OPERATIONS, OPERATIONS_UNKNOWN
from ponor_broker.requests.api_handler import RequestContext

CLASSIC_MEMBER: Final = 0
"""Type of a member that uses the classic protocol."""
CONSUMER_MEMBER: Final = 1
"""Type of a member that sends ConsumerGroupHeartbeat."""
MEMBERS_PER_STEP: Final = 200


class ConsumerGroupDescribeHandler:
    """Describes groups from memory, like DescribeGroups."""

    def __init__(self, coordinator: GroupCoordinator, topics: TopicDirectory) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._turns = Turns()

    async def handle(
        self, request: ConsumerGroupDescribeRequest, _: RequestContext
    ) -> ConsumerGroupDescribeResponse:
        """ConsumerGroupDescribe."""
        operations = GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_UNKNOWN
        await self._coordinator.shards.decided(request.group_ids)
        # Each group once: it may have thousands of members.
        steps = self._all(dict.fromkeys(request.group_ids), operations)
        return ConsumerGroupDescribeResponse(groups=await self._turns.run_short(steps))

    def _all(self, group_ids: Iterable[str], operations: int) -> Steps[list[DescribedGroup]]:
        groups: list[DescribedGroup] = []
        rows = 0
        for group_id in group_ids:
            group = yield from self._described(group_id, operations)
            groups.append(group)
            rows += 1 + len(group.members) % MEMBERS_PER_STEP
            if rows >= MEMBERS_PER_STEP:
                rows = 0
                yield
        return groups

    def _described(self, group_id: str, operations: int) -> Steps[DescribedGroup]:
        group = self._coordinator.consumer_group(group_id)
        if isinstance(group, ErrorCode):
            is_missing = group is ErrorCode.GROUP_ID_NOT_FOUND
            return DescribedGroup(
                error_code=group,
                error_message=f"Group {group_id} not found." if is_missing else group.meaning,
                group_id=group_id,
            )
        contents = group.contents
        described = DescribedGroup(
            group_id=group_id,
            group_state=str(group.state),
            group_epoch=contents.group_epoch,
            assignment_epoch=contents.assigned_epoch,
            assignor_name=group.assignor,
            authorized_operations=operations,
        )
        members: list[Member] = []
        for number, member_id in enumerate(list(contents.members), 1):
            if member_id in contents.members:  # otherwise it left between two steps
                members.append(self._member(group, member_id))
            if number % MEMBERS_PER_STEP == 0:
                yield
        described.members = members
        return described

    def _member(self, group: ConsumerMembership, member_id: str) -> Member:
        member, current = group.contents.members[member_id], group.contents.current_of(member_id)
        held = plain(united(current.assigned, current.revoking))
        return Member(
            member_id=member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=current.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            subscribed_topic_regex=member.expression or "",
            assignment=Assignment(self._rows(held)),
            target_assignment=Assignment(self._rows(group.contents.target_of(member_id))),
            member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
        )

    def _rows(self, partitions: Partitions) -> list[TopicPartitions]:
        """Return rows of the topics that exist."""
        named = ((self._topics.topic_name(UUID(bytes=each)), each) for each in partitions)
        return [
            TopicPartitions(topic_id, name, sorted(partitions[topic_id]))
            for name, topic_id in named
            if name is not None
        ]
