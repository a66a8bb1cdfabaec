"""The consumer protocol that classic members embed in JoinGroup and SyncGroup: subscriptions and assignments.

The group protocol treats both as opaque. A consumer group with classic members reads their subscriptions and
writes their assignments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ponor_kafka.codec import decode_versioned, encode_versioned
from ponor_kafka.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from ponor_kafka.messages.consumer_protocol_assignment import TopicPartition as AssignedTopic
from ponor_kafka.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from ponor_kafka.messages.consumer_protocol_subscription import TopicPartition as OwnedTopic

from ponor_broker.groups.consumer.assignment import Partitions, partitions_of
from ponor_broker.groups.consumer.topics import ImageTopics


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription. `owned` contains the partitions that the member still uses. With the eager protocol, a
    member uses none when it joins.
    """

    topics: frozenset[str]
    rack_id: str | None
    owned: Partitions


def decode_subscription(metadata: bytes, topics: ImageTopics) -> Subscription:
    """Decode a subscription. Owned partitions of deleted topics are left out.

    Raises:
        KafkaWireError: the bytes are malformed.
    """
    message, _ = decode_versioned(ConsumerProtocolSubscription, metadata)
    owned = _by_id(message.owned_partitions, topics)
    return Subscription(frozenset(message.topics), message.rack_id or None, owned)


def decode_assignment(assignment: bytes, topics: ImageTopics) -> Partitions:
    """Decode an assignment; empty bytes are an empty one. Partitions of deleted topics are left out.

    Raises:
        KafkaWireError: the bytes are malformed.
    """
    if not assignment:
        return {}
    message, _ = decode_versioned(ConsumerProtocolAssignment, assignment)
    return _by_id(message.assigned_partitions, topics)


def encode_assignment(
    partitions: Mapping[bytes, Iterable[int]], topics: ImageTopics, subscription: bytes
) -> bytes:
    """Encode an assignment in the version of the member's subscription, or the nearest one."""
    named = ((topics.name_of(topic_id), indexes) for topic_id, indexes in partitions.items())
    rows = [AssignedTopic(name, sorted(indexes)) for name, indexes in named if name is not None]
    version = int.from_bytes(subscription[:2], "big", signed=True)
    message = ConsumerProtocolAssignment(sorted(rows, key=lambda row: row.topic))
    return encode_versioned(message, max(0, min(version, ConsumerProtocolAssignment.VERSION_MAX)))


def _by_id(rows: Iterable[OwnedTopic | AssignedTopic], topics: ImageTopics) -> Partitions:
    found = ((topics.find(row.topic), row.partitions) for row in rows)
    return partitions_of((topic.topic_id, indexes) for topic, indexes in found if topic is not None)
