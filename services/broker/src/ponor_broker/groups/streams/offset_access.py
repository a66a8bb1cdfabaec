"""Which clients may commit and fetch the offsets of a streams group."""

from __future__ import annotations

from collections.abc import Iterable

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.offsets import TopicPartition
from ponor_broker.groups.streams.assignment import TaskId
from ponor_broker.groups.streams.state import StreamsState


def refusal_of_commit(
    state: StreamsState,
    claim: MemberClaim,
    partitions: Iterable[TopicPartition],
    *,
    in_transaction: bool,
    knows_epochs: bool,
) -> ErrorCode:
    """Return NONE if a client may commit offsets of the partitions (topic and index), or the error.

    A member may commit with an older epoch if it has had the task since then (KIP-1251). A commit in a
    transaction may come from a producer that sends no member (KIP-447). `knows_epochs` is False for versions
    of OffsetCommit without member epochs.
    """
    epoch = claim.generation
    if epoch < 0 and not state.members:
        return ErrorCode.NONE
    if in_transaction and epoch == -1 and not claim.member_id and claim.instance_id is None:
        return ErrorCode.NONE
    if claim.member_id not in state.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not in_transaction and not knows_epochs:
        return ErrorCode.UNSUPPORTED_VERSION
    current = state.current_of(claim.member_id)
    if epoch == current.epoch:
        return ErrorCode.NONE
    stale = ErrorCode.ILLEGAL_GENERATION if in_transaction else ErrorCode.STALE_MEMBER_EPOCH
    if epoch > current.epoch or state.topology is None:
        return stale
    for topic, index in partitions:
        subtopology_id = state.topology.by_source.get(topic)
        since = None if subtopology_id is None else current.epoch_of(TaskId(subtopology_id, index))
        if since is None or epoch < since:
            return stale
    return ErrorCode.NONE


def refusal_of_fetch(state: StreamsState, member_id: str | None, epoch: int) -> ErrorCode:
    """Return NONE if a client may fetch offsets, or the error. Clients without a member id may."""
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    if member_id is None or member_id not in state.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    is_current = epoch == state.current_of(member_id).epoch
    return ErrorCode.NONE if is_current else ErrorCode.STALE_MEMBER_EPOCH
