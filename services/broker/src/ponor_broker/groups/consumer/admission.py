"""Which member a heartbeat is from: an existing one, a new one, or the successor of a static member
(KIP-345). The messages are Kafka's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.consumer.assignment import (
    JOINING_EPOCH,
    STATIC_LEAVING_EPOCH,
    CurrentAssignment,
    is_within,
)
from ponor_broker.groups.consumer.events import HeartbeatRequest
from ponor_broker.groups.consumer.member import ConsumerMember
from ponor_broker.groups.consumer.records import (
    ConsumerEntry,
    CurrentEntry,
    CurrentKey,
    MemberEntry,
    MemberKey,
    TargetEntry,
    TargetKey,
)
from ponor_broker.groups.consumer.state import ConsumerState
from ponor_broker.groups.outcome import Draft, HeartbeatRefusedError

REJOIN: Final = "The member must abandon all its partitions and rejoin."


def admit(
    group_id: str, state: ConsumerState, request: HeartbeatRequest, draft: Draft[ConsumerEntry]
) -> str | None:
    """Check that the heartbeat's sender is a member, or may become one.

    Returns:
        The id of the member that it replaces; None if it replaces none.

    Raises:
        HeartbeatRefusedError: it is not, or its epoch is fenced.
    """
    if request.classic is not None:
        return _admit_classic(group_id, state, request, draft)
    if request.instance_id is None:
        if request.member_epoch != JOINING_EPOCH:
            member_of(group_id, state, request.member_id)
        _check_epoch(state.current_of(request.member_id), request)
        return None
    if request.member_epoch != JOINING_EPOCH:
        static_member_of(state, request)
        _check_epoch(state.current_of(request.member_id), request)
        return None
    holder = state.static_members.get(request.instance_id)
    if holder is None:
        return None
    is_away = state.current_of(holder).epoch == STATIC_LEAVING_EPOCH
    if not is_away and state.members[holder].classic is None:
        raise HeartbeatRefusedError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group "
            f"because the instance id is owned by {holder} member.",
        )
    _succeed(group_id, state, holder, request.member_id, draft)
    return holder


def _admit_classic(
    group_id: str, state: ConsumerState, request: HeartbeatRequest, draft: Draft[ConsumerEntry]
) -> str | None:
    """Admit a classic member. A static one that joins without a member id replaces its predecessor, even if
    that one is alive.
    """
    if request.instance_id is None:
        return None
    if request.is_named:
        static_member_of(state, request)
        return None
    holder = state.static_members.get(request.instance_id)
    if holder is not None:
        _succeed(group_id, state, holder, request.member_id, draft)
    return holder


def member_of(group_id: str, state: ConsumerState, member_id: str) -> ConsumerMember:
    """Return a member.

    Raises:
        HeartbeatRefusedError: there is no such member.
    """
    member = state.members.get(member_id)
    if member is None:
        raise HeartbeatRefusedError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}."
        )
    return member


def static_member_of(state: ConsumerState, request: HeartbeatRequest) -> ConsumerMember:
    """Return the member with the request's instance id.

    Raises:
        HeartbeatRefusedError: there is none, or another member has the instance id.
    """
    holder = state.static_members.get(request.instance_id or "")
    if holder is None:
        raise HeartbeatRefusedError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown."
        )
    if holder != request.member_id:
        raise HeartbeatRefusedError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} was fenced by member "
            f"{holder}.",
        )
    return state.members[holder]


def _check_epoch(current: CurrentAssignment, request: HeartbeatRequest) -> None:
    epoch = request.member_epoch
    if epoch in {JOINING_EPOCH, current.epoch}:
        return
    if epoch > current.epoch:
        raise HeartbeatRefusedError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a greater member epoch ({epoch}) than the one known by the group "
            f"coordinator ({current.epoch}). {REJOIN}",
        )
    # The answer with the newer epoch may have been lost.
    missed_answer = epoch == current.previous_epoch and request.owned is not None
    if not missed_answer or not is_within(request.owned or {}, current.assigned):
        raise HeartbeatRefusedError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a smaller member epoch ({epoch}) than the one known by the group "
            f"coordinator ({current.epoch}). {REJOIN}",
        )


def remove(group_id: str, state: ConsumerState, member_id: str, draft: Draft[ConsumerEntry]) -> None:
    """Write tombstones for a member, in Kafka's order."""
    if member_id in state.currents:
        draft.put(CurrentEntry(CurrentKey(group_id, member_id), None))
    if member_id in state.targets:
        draft.put(TargetEntry(TargetKey(group_id, member_id), None))
    draft.put(MemberEntry(MemberKey(group_id, member_id), None))


def _succeed(
    group_id: str, state: ConsumerState, former_id: str, member_id: str, draft: Draft[ConsumerEntry]
) -> None:
    """Let a static member that returns under a new id have the assignment of the one that left."""
    member = replace(state.members[former_id], member_id=member_id)
    target, current = state.targets.get(former_id), state.current_of(former_id)
    remove(group_id, state, former_id, draft)
    draft.put(MemberEntry(MemberKey(group_id, member_id), member))
    if target is not None:
        draft.put(TargetEntry(TargetKey(group_id, member_id), target))
    returned = replace(current, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
    draft.put(CurrentEntry(CurrentKey(group_id, member_id), returned))
