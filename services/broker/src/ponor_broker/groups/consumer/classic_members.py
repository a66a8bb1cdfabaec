"""Members of a consumer group that use the classic protocol: JoinGroup, SyncGroup and Heartbeat (KIP-848).

    JoinGroup   a heartbeat with all fields; the owned partitions are those of the embedded subscription
    SyncGroup   the current assignment, unless the member must join again
    Heartbeat   REBALANCE_IN_PROGRESS if the member must join again

The generation of a member is its member epoch. A member that must join, or that has joined and must sync,
does so within its rebalance timeout.
"""

from __future__ import annotations

from enum import Enum, auto

from ponor_kafka.errors import ErrorCode, KafkaWireError

from ponor_broker.groups.consumer.assignment import JOINING_EPOCH, CurrentAssignment, MemberState
from ponor_broker.groups.consumer.embedded_protocol import decode_subscription, encode_assignment
from ponor_broker.groups.consumer.events import HeartbeatRequest
from ponor_broker.groups.consumer.member import ClassicPart, ConsumerMember
from ponor_broker.groups.consumer.settings import ConsumerSettings, MigrationPolicy
from ponor_broker.groups.consumer.state import ConsumerState
from ponor_broker.groups.consumer.topics import ImageTopics
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.instructions import CancelTimer, SetTimer, SyncAnswer, Timer, TimerKind
from ponor_broker.groups.member import CONSUMER_PROTOCOL_TYPE
from ponor_broker.groups.outcome import HeartbeatRefusedError, TimerInstruction


class _Awaited(Enum):
    """The request that a member must send within its rebalance timeout."""

    JOIN = auto()
    SYNC = auto()


class ClassicMembers:
    """The classic members of one consumer group."""

    def __init__(self, contents: ConsumerState, settings: ConsumerSettings, topics: ImageTopics) -> None:
        self._contents = contents
        self._settings = settings
        self._topics = topics
        self._awaited: dict[str, _Awaited] = {}

    def is_overdue(self, member_id: str) -> bool:
        """Return whether a member whose rebalance timer fired has not sent the awaited request."""
        return member_id in self._awaited

    def forget(self, member_id: str) -> None:
        """Await no request of a member, because it left or uses the consumer protocol now."""
        self._awaited.pop(member_id, None)

    # --- JoinGroup

    def translated(self, request: JoinRequest) -> HeartbeatRequest:
        """Return a JoinGroup as a heartbeat.

        Raises:
            HeartbeatRefusedError: the member's protocols do not fit, or it must use the id of the refusal.
        """
        if self._settings.migration is MigrationPolicy.DISABLED:
            raise HeartbeatRefusedError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "The migration of consumer groups is disabled."
            )
        if not self._supports(request):
            raise HeartbeatRefusedError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                "The group's members share no protocol with the member.",
            )
        is_named = bool(request.member_id)
        if not is_named and request.requires_known_member_id and request.instance_id is None:
            raise HeartbeatRefusedError(ErrorCode.MEMBER_ID_REQUIRED, "The member must join with this id.")
        try:
            subscription = decode_subscription(request.protocols[0].metadata, self._topics)
        except KafkaWireError as error:
            raise HeartbeatRefusedError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"The subscription is malformed: {error}."
            ) from None
        return HeartbeatRequest(
            member_id=request.member_id or request.new_member_id,
            member_epoch=JOINING_EPOCH,
            instance_id=request.instance_id,
            rack_id=subscription.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=subscription.topics,
            expression="",
            owned=subscription.owned,
            classic=ClassicPart(request.session_timeout_ms, request.protocols),
            is_named=is_named,
        )

    def _supports(self, request: JoinRequest) -> bool:
        contents = self._contents
        return request.protocol_type == CONSUMER_PROTOCOL_TYPE and any(
            contents.classic_protocols[protocol.name] == contents.classic_members
            for protocol in request.protocols
        )

    def joined(self, member: ConsumerMember) -> list[TimerInstruction]:
        """Await the SyncGroup of a member that joined; return its timers."""
        self._awaited[member.member_id] = _Awaited.SYNC
        return [self.session_of(member), _within_rebalance_timeout(member)]

    # --- SyncGroup and Heartbeat

    def sync(self, request: SyncRequest) -> tuple[SyncAnswer, list[TimerInstruction]]:
        """Handle a SyncGroup."""
        found = self._claimed(request.claim)
        if isinstance(found, ErrorCode):
            return SyncAnswer(found), []
        member, classic, current = found
        if request.protocol_type not in {None, CONSUMER_PROTOCOL_TYPE} or request.protocol_name not in {
            None,
            classic.protocol.name,
        }:
            return SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL), []
        is_revoking = current.state is MemberState.UNREVOKED_PARTITIONS
        if current.epoch < self._contents.assigned_epoch and not is_revoking:
            return SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS), self._await_join(member)
        self.forget(member.member_id)
        assignment = encode_assignment(current.assigned, self._topics, classic.protocol.metadata)
        answer = SyncAnswer(ErrorCode.NONE, CONSUMER_PROTOCOL_TYPE, classic.protocol.name, assignment)
        return answer, [self.session_of(member), CancelTimer(Timer(TimerKind.REBALANCE, member.member_id))]

    def heartbeat(self, claim: MemberClaim) -> tuple[ErrorCode, list[TimerInstruction]]:
        """Handle a Heartbeat."""
        found = self._claimed(claim)
        if isinstance(found, ErrorCode):
            return found, []
        member, _, current = found
        if self._must_join(member.member_id, current):
            return ErrorCode.REBALANCE_IN_PROGRESS, [self.session_of(member), *self._await_join(member)]
        return ErrorCode.NONE, [self.session_of(member)]

    def _must_join(self, member_id: str, current: CurrentAssignment) -> bool:
        """Whether the target is newer, or partitions must be revoked, or the awaited ones are free."""
        match current.state:
            case MemberState.UNREVOKED_PARTITIONS:
                return True
            case MemberState.UNRELEASED_PARTITIONS if not self._waits(member_id, current):
                return True
        return current.epoch < self._contents.assigned_epoch

    def _waits(self, member_id: str, current: CurrentAssignment) -> bool:
        return any(
            self._contents.holder(topic_id, index) not in {None, member_id}
            for topic_id, indexes in self._contents.target_of(member_id).items()
            for index in indexes - current.assigned.get(topic_id, {}).keys()
        )

    def _await_join(self, member: ConsumerMember) -> list[TimerInstruction]:
        """Await a join. The time starts with the first answer that asked for it."""
        if self._awaited.get(member.member_id) is _Awaited.JOIN:
            return []
        self._awaited[member.member_id] = _Awaited.JOIN
        return [_within_rebalance_timeout(member)]

    # --- any request

    def _claimed(
        self, claim: MemberClaim
    ) -> tuple[ConsumerMember, ClassicPart, CurrentAssignment] | ErrorCode:
        """Return the classic member that a request is from, or the error."""
        error = self.refusal_of(claim)
        if error is not ErrorCode.NONE:
            return error
        member = self._contents.members[claim.member_id]
        if member.classic is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        current = self._contents.current_of(claim.member_id)
        if claim.generation != current.epoch:
            return ErrorCode.ILLEGAL_GENERATION
        return member, member.classic, current

    def refusal_of(self, claim: MemberClaim) -> ErrorCode:
        """Return NONE if the claim names a member, or the error."""
        if claim.instance_id is not None:
            holder = self._contents.static_members.get(claim.instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != claim.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if claim.member_id in self._contents.members else ErrorCode.UNKNOWN_MEMBER_ID

    def session_of(self, member: ConsumerMember) -> SetTimer:
        """Return the session timer of a member of either protocol."""
        classic, ms = member.classic, self._settings.session_timeout_in_force_ms
        timer = Timer(TimerKind.SESSION, member.member_id)
        return SetTimer(timer, ms if classic is None else classic.session_timeout_ms)


def _within_rebalance_timeout(member: ConsumerMember) -> SetTimer:
    return SetTimer(Timer(TimerKind.REBALANCE, member.member_id), max(0, member.rebalance_timeout_ms))
