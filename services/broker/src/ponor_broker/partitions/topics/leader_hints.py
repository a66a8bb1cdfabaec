"""Who leads a partition, beside an error that says it is not us (KIP-951).

What lives here: the hints of Produce and Fetch answers. With them a client goes to the new leader at once instead of after a metadata
refresh and its back-off.
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
    """The leader and its epoch as the image shows them, and where it is reached."""

    leader_id: int
    leader_epoch: int
    endpoint: Broker | None


def leader_hint(topics: Topics, topic: str | bytes, index: int, error: PartitionError) -> LeaderHint | None:
    """The hint for a refusal, None where it would not help, would come from metadata that are too old, or Metadata would name nobody."""
    if error.code not in HINTED or isinstance(error, BrokerFencedError):
        return None
    row = topics.by_id(topic) if isinstance(topic, bytes) else topics.by_name(topic)
    partition = None if row is None else topics.partition(row.topic_id, index)
    if partition is None or not topics.is_announced(partition):
        return None
    return LeaderHint(partition.leader_id, partition.leader_epoch, topics.broker(partition.leader_id))
