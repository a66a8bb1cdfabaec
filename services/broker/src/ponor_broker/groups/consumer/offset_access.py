"""Which clients may commit and fetch the offsets of a consumer group."""

from __future__ import annotations

from collections.abc import Iterable

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.consumer.state import ConsumerState
from ponor_broker.groups.events import MemberClaim


def refusal_of_commit(
    state: ConsumerState,
    claim: MemberClaim,
    partitions: Iterable[tuple[bytes | None, int]],
    *,
    in_transaction: bool,
    knows_epochs: bool,
) -> ErrorCode:
    """Return NONE if a client may commit offsets of the partitions (topic id and index), or the error.

    A member may commit with an older epoch if it has had the partition since then (KIP-1251). As in classic
    groups, a commit in a transaction may come from a producer that sends no member (KIP-447). `knows_epochs`
    is False for versions of OffsetCommit without member epochs. A classic member's generation is its member
    epoch.
    """
    epoch = claim.generation
    if epoch < 0 and not state.members:
        return ErrorCode.NONE
    if in_transaction and epoch == -1 and not claim.member_id and claim.instance_id is None:
        return ErrorCode.NONE
    member = state.members.get(claim.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not in_transaction and not knows_epochs and member.classic is None:
        return ErrorCode.UNSUPPORTED_VERSION
    current = state.current_of(claim.member_id)
    if epoch == current.epoch:
        return ErrorCode.NONE
    has_generation = in_transaction or member.classic is not None
    stale = ErrorCode.ILLEGAL_GENERATION if has_generation else ErrorCode.STALE_MEMBER_EPOCH
    if epoch > current.epoch:
        return stale
    for topic_id, index in partitions:
        since = None if topic_id is None else current.epoch_of(topic_id, index)
        if since is None or epoch < since:
            return stale
    return ErrorCode.NONE


def refusal_of_fetch(state: ConsumerState, member_id: str | None, epoch: int) -> ErrorCode:
    """Return NONE if a client may fetch offsets, or the error. Clients without a member id may."""
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    member = state.members.get(member_id or "")
    if member_id is None or member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch == state.current_of(member_id).epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
