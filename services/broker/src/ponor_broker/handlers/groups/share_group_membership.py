"""ShareGroupHeartbeat and ShareGroupDescribe: members of share groups join, continue and leave (KIP-932)."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages import share_group_describe as description
from ponor_kafka.messages import share_group_heartbeat as wire
from ponor_kafka.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from ponor_kafka.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ponor_runtime.turns import Steps, Turns

from ponor_broker.coordination.ports import TopicDirectory
from ponor_broker.coordination.record_format import fits_record
from ponor_broker.groups.assignors.simple import SIMPLE
from ponor_broker.groups.consumer.assignment import JOINING_EPOCH, LEAVING_EPOCH, plain
from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest
from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.outcome import HeartbeatRefusedError
from ponor_broker.groups.share.membership import ShareMembership
from ponor_broker.handlers.groups.consumer_group_heartbeat import check_text, invalid_request
from ponor_broker.handlers.groups.group_admin import GROUP_OPERATIONS, OPERATIONS_UNKNOWN
from ponor_broker.requests.api_handler import RequestContext

MEMBERS_PER_STEP: Final = 200


class ShareGroupMembershipHandlers:
    """Handlers for members and for administration tools."""

    def __init__(self, coordinator: GroupCoordinator, topics: TopicDirectory) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._turns = Turns()

    # --- ShareGroupHeartbeat

    async def heartbeat(
        self, request: ShareGroupHeartbeatRequest, context: RequestContext
    ) -> ShareGroupHeartbeatResponse:
        """ShareGroupHeartbeat; checks the form with Kafka's messages."""
        try:
            _check(request)
        except HeartbeatRefusedError as refusal:
            return ShareGroupHeartbeatResponse(error_code=refusal.code, error_message=str(refusal))
        topics = request.subscribed_topic_names
        answer = await self._coordinator.share_heartbeat(
            request.group_id,
            HeartbeatRequest(
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                rack_id=request.rack_id,
                client_id=context.client_id or "",
                client_host=f"/{context.connection.host}",
                topics=None if topics is None else frozenset(topics),
            ),
        )
        return self._response(request.group_id, answer)

    def _response(self, group_id: str, answer: HeartbeatAnswer) -> ShareGroupHeartbeatResponse:
        if answer.error is not ErrorCode.NONE:
            return ShareGroupHeartbeatResponse(error_code=answer.error, error_message=answer.message)
        interval_ms = self._coordinator.heartbeat_interval_ms("share", group_id)
        return ShareGroupHeartbeatResponse(
            member_id=answer.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval_ms=0 if answer.member_epoch < JOINING_EPOCH else interval_ms,
            assignment=None
            if answer.assignment is None
            else wire.Assignment(
                [
                    wire.TopicPartitions(topic_id, sorted(indexes))
                    for topic_id, indexes in answer.assignment.items()
                ]
            ),
        )

    # --- ShareGroupDescribe

    async def describe(
        self, request: ShareGroupDescribeRequest, _: RequestContext
    ) -> ShareGroupDescribeResponse:
        """ShareGroupDescribe."""
        operations = GROUP_OPERATIONS if request.include_authorized_operations else OPERATIONS_UNKNOWN
        await self._coordinator.shards.decided(request.group_ids)
        groups = [
            await self._turns.run_short(self._described(group_id, operations))
            for group_id in dict.fromkeys(request.group_ids)  # each once: it may have many members
        ]
        return ShareGroupDescribeResponse(groups=groups)

    def _described(self, group_id: str, operations: int) -> Steps[DescribedGroup]:
        if not group_id:
            return DescribedGroup(error_code=ErrorCode.INVALID_GROUP_ID, group_id=group_id)
        group = self._coordinator.share_group(group_id)
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
            assignor_name=SIMPLE,
            authorized_operations=operations,
        )
        members: list[description.Member] = []
        for number, member_id in enumerate(list(contents.members), 1):
            if member_id in contents.members:  # otherwise it left between two steps
                members.append(self._member(group, member_id))
            if number % MEMBERS_PER_STEP == 0:
                yield
        described.members = members
        return described

    def _member(self, group: ShareMembership, member_id: str) -> description.Member:
        member, current = group.contents.members[member_id], group.contents.current_of(member_id)
        named = (
            (self._topics.topic_name(UUID(bytes=topic_id)), topic_id, indexes)
            for topic_id, indexes in plain(current.assigned).items()
        )
        rows = [
            description.TopicPartitions(topic_id, name, sorted(indexes))
            for name, topic_id, indexes in named
            if name is not None
        ]
        return description.Member(
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=current.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            assignment=description.Assignment(rows),
        )


def _check(request: ShareGroupHeartbeatRequest) -> None:
    check_text("MemberId", request.member_id)
    check_text("GroupId", request.group_id)
    check_text("RackId", request.rack_id)
    if not fits_record(request.member_id):
        raise invalid_request("MemberId is too long.")
    if request.member_epoch == JOINING_EPOCH:
        if not request.subscribed_topic_names:
            raise invalid_request("SubscribedTopicNames must be set in first request.")
    elif request.member_epoch < LEAVING_EPOCH:
        raise invalid_request("MemberEpoch is invalid.")
