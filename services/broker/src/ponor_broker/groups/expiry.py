"""Expiry of committed offsets (KIP-211, KIP-496), as a function of a group and the wall clock.

    group                                    retention of an offset starts with
    simple (never had members)               its commit
    empty                                    the later of its commit and the last member's leaving
    stable, of consumers, topic not read     its commit
    anything else                            never expires

An explicit retention time (OffsetCommit 2 to 4) replaces the configured one, in the first three
rows. In Kafka 4.3.1 the retention in an empty group starts with the last member's leaving even if
an offset was committed later, so that an administrator's reset of an old group can expire within
minutes; here a commit always has its whole retention time. The wall clock decides, as in Kafka,
since retention must span restarts: a clock that jumps forward by an hour expires offsets an hour
early, one that jumps back delays their expiry.
"""

from __future__ import annotations

from collections.abc import Iterable

from ponor_broker.groups.group import Group
from ponor_broker.groups.offsets import TopicPartition
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import NO_TIMESTAMP, CommittedOffset


def expired_offsets(
    group: Group, partitions: Iterable[TopicPartition], *, now_ms: int, retention_ms: int
) -> tuple[TopicPartition, ...]:
    """Return those of the partitions whose commits have expired. Partitions with a commit in flight
    are excluded.
    """
    membership = group.membership
    read_topics: frozenset[str] = frozenset()
    not_before_ms = NO_TIMESTAMP
    if membership.state is GroupState.EMPTY:
        if not group.is_simple:
            not_before_ms = group.quiet_since_ms
    elif membership.state is GroupState.STABLE:
        topics = membership.subscribed_topics()
        if topics is None:
            return ()
        read_topics = topics
    else:
        return ()
    return tuple(
        partition
        for partition in partitions
        if partition[0] not in read_topics
        and not group.offsets.is_in_flight(partition)
        and (committed := group.offsets.get(partition)) is not None
        and _is_over(committed, now_ms=now_ms, not_before_ms=not_before_ms, retention_ms=retention_ms)
    )


def _is_over(committed: CommittedOffset, *, now_ms: int, not_before_ms: int, retention_ms: int) -> bool:
    if committed.expire_timestamp_ms >= 0:
        return committed.expire_timestamp_ms <= now_ms
    return max(committed.commit_timestamp_ms, not_before_ms) + retention_ms <= now_ms
