"""Which clients may commit and fetch the offsets of a group whose assignment the coordinator computes."""

from __future__ import annotations

from collections.abc import Mapping

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.consumer import offset_access as of_consumers
from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.group import Group
from ponor_broker.groups.offsets import TopicPartition
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.streams import offset_access as of_streams


def refusal_of_commit(
    group: Group,
    claim: MemberClaim,
    commits: Mapping[TopicPartition, CommittedOffset],
    *,
    in_transaction: bool,
    knows_epochs: bool,
) -> ErrorCode:
    """Return NONE if a client may commit the offsets, or the error."""
    if group.share is not None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.membership.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.streams is not None:
        return of_streams.refusal_of_commit(
            group.streams.contents, claim, commits, in_transaction=in_transaction, knows_epochs=knows_epochs
        )
    assert group.consumer is not None
    return of_consumers.refusal_of_commit(
        group.consumer.contents,
        claim,
        ((committed.topic_id, index) for (_, index), committed in commits.items()),
        in_transaction=in_transaction,
        knows_epochs=knows_epochs,
    )


def refusal_of_fetch(group: Group, member_id: str | None, member_epoch: int) -> ErrorCode:
    """Return NONE if a client may fetch offsets, or the error."""
    if group.share is not None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.streams is not None:
        return of_streams.refusal_of_fetch(group.streams.contents, member_id, member_epoch)
    if group.consumer is not None:
        return of_consumers.refusal_of_fetch(group.consumer.contents, member_id, member_epoch)
    return ErrorCode.NONE
