"""Encoding of a share group's records: Kafka's own format (docs/formats/consumer-offsets.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ponor_kafka.codec import decode_as, encode_versioned
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.message import Message
from ponor_kafka.messages import group_coordinator_records as wire
from ponor_kafka.primitives import Buffer

from ponor_broker.coordination.record_format import version_of
from ponor_broker.groups.consumer.assignment import CurrentAssignment, MemberState, Partitions, plain
from ponor_broker.groups.consumer.member import ConsumerMember
from ponor_broker.groups.consumer.records import (
    CurrentEntry,
    CurrentKey,
    EpochEntry,
    EpochKey,
    GroupEpoch,
    MemberEntry,
    MemberKey,
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
    TargetEpochKey,
    TargetKey,
)
from ponor_broker.groups.share.records import (
    AssignmentValue,
    ShareEntry,
    ShareGroupEntry,
    StatePartitionsEntry,
    StatePartitionsKey,
)
from ponor_broker.groups.share.state_partitions import StatePartitions, StatesById, TopicStates

MEMBER_KEY: Final = 10
EPOCH_KEY: Final = 11
TARGET_EPOCH_KEY: Final = 12
TARGET_KEY: Final = 13
CURRENT_KEY: Final = 14
STATE_PARTITIONS_KEY: Final = 15
SHARE_KEYS: Final = frozenset(range(MEMBER_KEY, STATE_PARTITIONS_KEY + 1))
_VALUE_VERSION: Final = 0


def encode_share_entry(entry: ShareGroupEntry) -> tuple[bytes, bytes | None]:
    """Return key and value of an entry; the value of a tombstone is None."""
    kind, key = _key_of(entry)
    if entry.value is None:
        return encode_versioned(key, kind), None
    message = _value_of(entry.value)
    return encode_versioned(key, kind), encode_versioned(message, _VALUE_VERSION)


def _key_of(entry: ShareGroupEntry) -> tuple[int, Message]:
    if isinstance(entry, StatePartitionsEntry):
        return STATE_PARTITIONS_KEY, wire.ShareGroupStatePartitionMetadataKey(entry.key.group_id)
    match entry.inner.key:
        case EpochKey(group_id):
            return EPOCH_KEY, wire.ShareGroupMetadataKey(group_id)
        case MemberKey(group_id, member_id):
            return MEMBER_KEY, wire.ShareGroupMemberMetadataKey(group_id, member_id)
        case TargetEpochKey(group_id):
            return TARGET_EPOCH_KEY, wire.ShareGroupTargetAssignmentMetadataKey(group_id)
        case TargetKey(group_id, member_id):
            return TARGET_KEY, wire.ShareGroupTargetAssignmentMemberKey(group_id, member_id)
        case CurrentKey(group_id, member_id):
            return CURRENT_KEY, wire.ShareGroupCurrentMemberAssignmentKey(group_id, member_id)


def _value_of(value: AssignmentValue | StatePartitions) -> Message:
    match value:
        case GroupEpoch(epoch, topics_hash):
            return wire.ShareGroupMetadataValue(epoch, topics_hash)
        case TargetEpoch(epoch, computed_ms):
            return wire.ShareGroupTargetAssignmentMetadataValue(epoch, computed_ms)
        case ConsumerMember() as member:
            return wire.ShareGroupMemberMetadataValue(
                member.rack_id, member.client_id, member.client_host, sorted(member.topics)
            )
        case CurrentAssignment() as current:
            rows = _encode_partitions(plain(current.assigned))
            return wire.ShareGroupCurrentMemberAssignmentValue(
                current.epoch, current.previous_epoch, int(current.state), rows
            )
        case StatePartitions(initializing, initialized, deleting):
            return wire.ShareGroupStatePartitionMetadataValue(
                _encode_states(initializing),
                _encode_states(initialized),
                [wire.DeletingTopic(topic_id, name) for topic_id, name in sorted(deleting.items())],
            )
        case partitions:
            return wire.ShareGroupTargetAssignmentMemberValue(_encode_partitions(partitions))


def _encode_partitions(partitions: Partitions) -> list[wire.TargetTopicPartitions]:
    return [
        wire.TargetTopicPartitions(topic_id, sorted(indexes))
        for topic_id, indexes in sorted(partitions.items())
    ]


def _encode_states(states: StatesById) -> list[wire.StateTopicPartitions]:
    return [
        wire.StateTopicPartitions(topic_id, name, sorted(partitions))
        for topic_id, (name, partitions) in sorted(states.items())
    ]


def decode_share_entry(kind: int, key: bytes, value: Buffer | None) -> ShareGroupEntry:
    """Return the entry of a record whose key is of one of `SHARE_KEYS`.

    Raises:
        KafkaWireError: the bytes are malformed, or of an unknown version.
    """
    version = _VALUE_VERSION if value is None else version_of(value)
    match kind:
        case 10:
            owner, _ = decode_as(wire.ShareGroupMemberMetadataKey, kind, key, 2)
            member = _decode_member(owner.member_id, version, value)
            return ShareEntry(MemberEntry(MemberKey(owner.group_id, owner.member_id), member))
        case 11:
            group, _ = decode_as(wire.ShareGroupMetadataKey, kind, key, 2)
            return ShareEntry(EpochEntry(EpochKey(group.group_id), _decode_epoch(version, value)))
        case 12:
            target, _ = decode_as(wire.ShareGroupTargetAssignmentMetadataKey, kind, key, 2)
            epoch = _decode_target_epoch(version, value)
            return ShareEntry(TargetEpochEntry(TargetEpochKey(target.group_id), epoch))
        case 13:
            whose, _ = decode_as(wire.ShareGroupTargetAssignmentMemberKey, kind, key, 2)
            partitions = _decode_target(version, value)
            return ShareEntry(TargetEntry(TargetKey(whose.group_id, whose.member_id), partitions))
        case 14:
            holder, _ = decode_as(wire.ShareGroupCurrentMemberAssignmentKey, kind, key, 2)
            current = _decode_current(version, value)
            return ShareEntry(CurrentEntry(CurrentKey(holder.group_id, holder.member_id), current))
    assert kind == STATE_PARTITIONS_KEY
    states, _ = decode_as(wire.ShareGroupStatePartitionMetadataKey, kind, key, 2)
    return StatePartitionsEntry(StatePartitionsKey(states.group_id), _decode_state_partitions(version, value))


def _decode_member(member_id: str, version: int, value: Buffer | None) -> ConsumerMember | None:
    if value is None:
        return None
    message, _ = decode_as(wire.ShareGroupMemberMetadataValue, version, value, 2)
    return ConsumerMember(
        member_id=member_id,
        rack_id=message.rack_id,
        client_id=message.client_id,
        client_host=message.client_host,
        topics=frozenset(message.subscribed_topic_names),
    )


def _decode_epoch(version: int, value: Buffer | None) -> GroupEpoch | None:
    if value is None:
        return None
    message, _ = decode_as(wire.ShareGroupMetadataValue, version, value, 2)
    return GroupEpoch(message.epoch, message.metadata_hash)


def _decode_target_epoch(version: int, value: Buffer | None) -> TargetEpoch | None:
    if value is None:
        return None
    message, _ = decode_as(wire.ShareGroupTargetAssignmentMetadataValue, version, value, 2)
    return TargetEpoch(message.assignment_epoch, message.assignment_timestamp)


def _decode_target(version: int, value: Buffer | None) -> Partitions | None:
    if value is None:
        return None
    message, _ = decode_as(wire.ShareGroupTargetAssignmentMemberValue, version, value, 2)
    return _decode_partitions(message.topic_partitions)


def _decode_current(version: int, value: Buffer | None) -> CurrentAssignment | None:
    if value is None:
        return None
    message, _ = decode_as(wire.ShareGroupCurrentMemberAssignmentValue, version, value, 2)
    if message.state != MemberState.STABLE:
        raise KafkaWireError(f"{message.state} is not a state of a member of a share group")
    epoch, partitions = message.member_epoch, _decode_partitions(message.assigned_partitions)
    assigned = {topic_id: dict.fromkeys(indexes, epoch) for topic_id, indexes in partitions.items()}
    return CurrentAssignment(epoch, message.previous_member_epoch, assigned=assigned)


def _decode_partitions(rows: Iterable[wire.TargetTopicPartitions]) -> Partitions:
    return {row.topic_id: frozenset(row.partitions) for row in rows if row.partitions}


def _decode_state_partitions(version: int, value: Buffer | None) -> StatePartitions | None:
    if value is None:
        return None
    message, _ = decode_as(wire.ShareGroupStatePartitionMetadataValue, version, value, 2)
    return StatePartitions(
        _decode_states(message.initializing_topics),
        _decode_states(message.initialized_topics),
        {row.topic_id: row.topic_name for row in message.deleting_topics},
    )


def _decode_states(rows: Iterable[wire.StateTopicPartitions]) -> StatesById:
    return {
        row.topic_id: TopicStates(row.topic_name, frozenset(row.partitions)) for row in rows if row.partitions
    }
