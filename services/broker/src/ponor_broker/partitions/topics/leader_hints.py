"""Leader hints in Produce and Fetch answers (KIP-951).

With a hint a client connects to the new leader immediately instead of after its back-off and a
metadata refresh.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode

from ponor_broker.partitions.errors import BrokerFencedError, PartitionError
from ponor_broker.partitions.topics.topics import Broker, Topics

HINTED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
    }
)


class LeaderHint(NamedTuple):
    """The leader and its epoch in the image, and its address."""

    leader_id: int
    leader_epoch: int
    endpoint: Broker | None


def leader_hint(topics: Topics, topic: str | bytes, index: int, error: PartitionError) -> LeaderHint | None:
    """Return the hint for a refusal; None if it would not help, the image may be outdated, or
    Metadata would name no leader.
    """
    if error.code not in HINTED or isinstance(error, BrokerFencedError):
        return None
    row = topics.by_id(topic) if isinstance(topic, bytes) else topics.by_name(topic)
    partition = None if row is None else topics.partition(row.topic_id, index)
    if partition is None or not topics.is_announced(partition):
        return None
    return LeaderHint(partition.leader_id, partition.leader_epoch, topics.broker(partition.leader_id))
