"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: members of classic groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ponor_kafka.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from ponor_kafka.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from ponor_kafka.messages.sync_group import SyncGroupRequest, SyncGroupResponse

from ponor_broker.groups.coordinator import GroupCoordinator
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.instructions import JoinAnswer
from ponor_broker.groups.member import PROTOCOLS_MAX, JoinProtocol
from ponor_broker.requests.api_handler import RequestContext

REBALANCE_TIMEOUT_FROM: Final = 1
KNOWN_MEMBER_ID_FROM: Final = 4
"""KIP-394: a member gets its id in a first request, so that a client's retries create no orphaned members."""
PROTOCOL_NAMED_FROM: Final = 5
NULL_PROTOCOL_FROM: Final = 7
SKIP_ASSIGNMENT_FROM: Final = 9
LEAVE_BATCHED_FROM: Final = 3
NAMED_MEMBERS_MAX: Final = 10_000
"""Members that LeaveGroup and SyncGroup may name, or `group_members_max` if that is higher. After the setting
was lowered, a group may have more members than it allows.
"""


class GroupMembershipHandlers:
    """JoinGroup and SyncGroup are answered when the rebalance completes; their connection waits, as in
    Kafka.
    """

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def join(self, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
        """JoinGroup."""
        version, group_id = context.api_version, request.group_id
        member = _joining(request, context)
        del request  # not needed while the request waits
        names = (group_id, member.member_id, member.instance_id, member.client_id, member.protocol_type)
        answer = await self._coordinator.join_group(
            group_id, member, partial(context.free, _total_length(names))
        )
        return _join_response(answer, version)

    async def sync(self, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
        """SyncGroup. From version 5 on the protocol name is required (KIP-559)."""
        is_named = request.protocol_type is not None and request.protocol_name is not None
        if context.api_version >= PROTOCOL_NAMED_FROM and not is_named:
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self._names_too_many(request.assignments):
            return SyncGroupResponse(error_code=ErrorCode.INVALID_REQUEST)
        assignments = {share.member_id: share.assignment for share in request.assignments}
        request.assignments = ()  # so that a follower's assignments can be freed before it waits
        names = (
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.protocol_type,
            request.protocol_name,
            context.client_id,
        )
        answer = await self._coordinator.sync_group(
            request.group_id,
            SyncRequest(
                claim=MemberClaim(request.member_id, request.group_instance_id, request.generation_id),
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignments=assignments,
            ),
            partial(context.free, _total_length(names)),
        )
        return SyncGroupResponse(
            error_code=answer.error,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol_name,
            assignment=answer.assignment,
        )

    async def heartbeat(self, request: HeartbeatRequest, _: RequestContext) -> HeartbeatResponse:
        """Heartbeat."""
        claim = MemberClaim(request.member_id, request.group_instance_id, request.generation_id)
        return HeartbeatResponse(error_code=self._coordinator.heartbeat(request.group_id, claim))

    async def leave(self, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
        """LeaveGroup: one member; from version 3 on many, with one result per member."""
        is_batched = context.api_version >= LEAVE_BATCHED_FROM
        if self._names_too_many(request.members):
            return LeaveGroupResponse(error_code=ErrorCode.INVALID_REQUEST)
        if is_batched:
            leaving = tuple(MemberClaim(m.member_id, m.group_instance_id) for m in request.members)
        else:
            leaving = (MemberClaim(request.member_id),)
        answer = await self._coordinator.leave_group(request.group_id, leaving)
        if isinstance(answer, ErrorCode):
            return LeaveGroupResponse(error_code=answer)
        if not is_batched:
            return LeaveGroupResponse(error_code=answer.results[0][1])
        members = [
            MemberResponse(claim.member_id, claim.instance_id, error) for claim, error in answer.results
        ]
        return LeaveGroupResponse(error_code=ErrorCode.NONE, members=members)

    def _names_too_many(self, members: Sequence[object]) -> bool:
        """Return whether a request names too many members: 4 MiB of them would block the loop for seconds."""
        return len(members) > max(self._coordinator.settings.group_members_max, NAMED_MEMBERS_MAX)


def _joining(request: JoinGroupRequest, context: RequestContext) -> JoinRequest:
    has_rebalance_timeout = context.api_version >= REBALANCE_TIMEOUT_FROM
    return JoinRequest(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=f"/{context.connection.host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if has_rebalance_timeout else request.session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        # The coordinator refuses more protocols than the bound, so further ones need no object.
        protocols=tuple(
            JoinProtocol(each.name, each.metadata) for each in request.protocols[: PROTOCOLS_MAX + 1]
        ),
        requires_known_member_id=context.api_version >= KNOWN_MEMBER_ID_FROM,
        supports_skipping_assignment=context.api_version >= SKIP_ASSIGNMENT_FROM,
    )


def _total_length(texts: Iterable[str | None]) -> int:
    return sum(len(text) for text in texts if text is not None)


def _join_response(answer: JoinAnswer, version: int) -> JoinGroupResponse:
    protocol_name = answer.protocol_name
    if protocol_name is None and version < NULL_PROTOCOL_FROM:
        protocol_name = ""
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol_name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[JoinGroupResponseMember(m.member_id, m.instance_id, m.metadata) for m in answer.members],
    )
