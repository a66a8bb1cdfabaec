"""Encoding of a consumer group's records: Kafka's own format (docs/formats/consumer-offsets.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ponor_kafka.codec import decode_as, encode_versioned
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.message import Message
from ponor_kafka.messages import group_coordinator_records as wire
from ponor_kafka.primitives import Buffer

from ponor_broker.coordination.record_format import version_of
from ponor_broker.groups.consumer.assignment import (
    CurrentAssignment,
    EpochedPartitions,
    MemberState,
    Partitions,
)
from ponor_broker.groups.consumer.member import ClassicPart, ConsumerMember
from ponor_broker.groups.consumer.records import (
    ConsumerEntry,
    CurrentEntry,
    CurrentKey,
    EpochEntry,
    EpochKey,
    ExpressionEntry,
    ExpressionKey,
    GroupEpoch,
    MemberEntry,
    MemberKey,
    ResolvedExpression,
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
    TargetEpochKey,
    TargetKey,
)
from ponor_broker.groups.member import JoinProtocol

EPOCH_KEY: Final = 3
MEMBER_KEY: Final = 5
TARGET_EPOCH_KEY: Final = 6
TARGET_KEY: Final = 7
CURRENT_KEY: Final = 8
EXPRESSION_KEY: Final = 16
CONSUMER_KEYS: Final = frozenset(
    {EPOCH_KEY, MEMBER_KEY, TARGET_EPOCH_KEY, TARGET_KEY, CURRENT_KEY, EXPRESSION_KEY}
)
_VALUE_VERSION: Final = 0


def encode_consumer_entry(entry: ConsumerEntry) -> tuple[bytes, bytes | None]:
    """Return key and value of an entry; the value of a tombstone is None."""
    kind, key = _key_of(entry)
    value = None if entry.value is None else encode_versioned(_value_of(entry), _VALUE_VERSION)
    return encode_versioned(key, kind), value


def _key_of(entry: ConsumerEntry) -> tuple[int, Message]:
    match entry:
        case EpochEntry(key):
            return EPOCH_KEY, wire.ConsumerGroupMetadataKey(key.group_id)
        case MemberEntry(member_key):
            return MEMBER_KEY, wire.ConsumerGroupMemberMetadataKey(member_key.group_id, member_key.member_id)
        case TargetEpochEntry(epoch_key):
            return TARGET_EPOCH_KEY, wire.ConsumerGroupTargetAssignmentMetadataKey(epoch_key.group_id)
        case TargetEntry(target_key):
            return TARGET_KEY, wire.ConsumerGroupTargetAssignmentMemberKey(
                target_key.group_id, target_key.member_id
            )
        case CurrentEntry(current_key):
            return CURRENT_KEY, wire.ConsumerGroupCurrentMemberAssignmentKey(
                current_key.group_id, current_key.member_id
            )
        case ExpressionEntry(expression_key):
            return EXPRESSION_KEY, wire.ConsumerGroupRegularExpressionKey(
                expression_key.group_id, expression_key.expression
            )


def _value_of(entry: ConsumerEntry) -> Message:
    match entry.value:
        case GroupEpoch(epoch, topics_hash):
            return wire.ConsumerGroupMetadataValue(epoch, topics_hash)
        case TargetEpoch(epoch, computed_ms):
            return wire.ConsumerGroupTargetAssignmentMetadataValue(epoch, computed_ms)
        case ConsumerMember() as member:
            return _encode_member(member)
        case CurrentAssignment() as current:
            return wire.ConsumerGroupCurrentMemberAssignmentValue(
                current.epoch,
                current.previous_epoch,
                int(current.state),
                _encode_epoched(current.assigned),
                _encode_epoched(current.revoking),
            )
        case ResolvedExpression(topics, version, resolved_ms):
            return wire.ConsumerGroupRegularExpressionValue(sorted(topics), version, resolved_ms)
        case partitions:
            assert partitions is not None
            rows = [
                wire.TargetTopicPartitions(topic_id, sorted(indexes))
                for topic_id, indexes in sorted(partitions.items())
            ]
            return wire.ConsumerGroupTargetAssignmentMemberValue(rows)


def _encode_member(member: ConsumerMember) -> Message:
    return wire.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.expression,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None if member.classic is None else _encode_classic(member.classic),
    )


def _encode_classic(classic: ClassicPart) -> wire.ClassicMemberMetadata:
    protocols = [wire.ClassicProtocol(each.name, each.metadata) for each in classic.protocols]
    return wire.ClassicMemberMetadata(classic.session_timeout_ms, protocols)


def _encode_epoched(partitions: EpochedPartitions) -> list[wire.CurrentTopicPartitions]:
    rows: list[wire.CurrentTopicPartitions] = []
    for topic_id, epochs in sorted(partitions.items()):
        indexes = sorted(epochs)
        rows.append(wire.CurrentTopicPartitions(topic_id, indexes, [epochs[index] for index in indexes]))
    return rows


def decode_consumer_entry(kind: int, key: bytes, value: Buffer | None) -> ConsumerEntry:
    """Return the entry of a record whose key is of one of `CONSUMER_KEYS`.

    Raises:
        KafkaWireError: the bytes are malformed, or of an unknown version.
    """
    version = _VALUE_VERSION if value is None else version_of(value)
    match kind:
        case 3:
            group, _ = decode_as(wire.ConsumerGroupMetadataKey, kind, key, 2)
            return EpochEntry(EpochKey(group.group_id), _decode_epoch(version, value))
        case 5:
            owner, _ = decode_as(wire.ConsumerGroupMemberMetadataKey, kind, key, 2)
            member = _decode_member(owner.member_id, version, value)
            return MemberEntry(MemberKey(owner.group_id, owner.member_id), member)
        case 6:
            target, _ = decode_as(wire.ConsumerGroupTargetAssignmentMetadataKey, kind, key, 2)
            return TargetEpochEntry(TargetEpochKey(target.group_id), _decode_target_epoch(version, value))
        case 7:
            whose, _ = decode_as(wire.ConsumerGroupTargetAssignmentMemberKey, kind, key, 2)
            return TargetEntry(TargetKey(whose.group_id, whose.member_id), _decode_target(version, value))
        case 8:
            holder, _ = decode_as(wire.ConsumerGroupCurrentMemberAssignmentKey, kind, key, 2)
            current = _decode_current(version, value)
            return CurrentEntry(CurrentKey(holder.group_id, holder.member_id), current)
    assert kind == EXPRESSION_KEY
    regex, _ = decode_as(wire.ConsumerGroupRegularExpressionKey, kind, key, 2)
    found = ExpressionKey(regex.group_id, regex.regular_expression)
    return ExpressionEntry(found, _decode_expression(version, value))


def _decode_epoch(version: int, value: Buffer | None) -> GroupEpoch | None:
    if value is None:
        return None
    message, _ = decode_as(wire.ConsumerGroupMetadataValue, version, value, 2)
    return GroupEpoch(message.epoch, message.metadata_hash)


def _decode_member(member_id: str, version: int, value: Buffer | None) -> ConsumerMember | None:
    if value is None:
        return None
    message, _ = decode_as(wire.ConsumerGroupMemberMetadataValue, version, value, 2)
    return ConsumerMember(
        member_id=member_id,
        instance_id=message.instance_id,
        rack_id=message.rack_id,
        client_id=message.client_id,
        client_host=message.client_host,
        topics=frozenset(message.subscribed_topic_names),
        expression=message.subscribed_topic_regex,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        assignor=message.server_assignor,
        classic=_decode_classic(message.classic_member_metadata),
    )


def _decode_classic(classic: wire.ClassicMemberMetadata | None) -> ClassicPart | None:
    if classic is None:
        return None
    if not classic.supported_protocols:
        raise KafkaWireError("a classic member supports no protocol")
    protocols = tuple(JoinProtocol(each.name, bytes(each.metadata)) for each in classic.supported_protocols)
    return ClassicPart(classic.session_timeout_ms, protocols)


def _decode_target_epoch(version: int, value: Buffer | None) -> TargetEpoch | None:
    if value is None:
        return None
    message, _ = decode_as(wire.ConsumerGroupTargetAssignmentMetadataValue, version, value, 2)
    return TargetEpoch(message.assignment_epoch, message.assignment_timestamp)


def _decode_target(version: int, value: Buffer | None) -> Partitions | None:
    if value is None:
        return None
    message, _ = decode_as(wire.ConsumerGroupTargetAssignmentMemberValue, version, value, 2)
    return {row.topic_id: frozenset(row.partitions) for row in message.topic_partitions if row.partitions}


def _decode_current(version: int, value: Buffer | None) -> CurrentAssignment | None:
    if value is None:
        return None
    message, _ = decode_as(wire.ConsumerGroupCurrentMemberAssignmentValue, version, value, 2)
    try:
        state = MemberState(message.state)
    except ValueError:
        raise KafkaWireError(f"{message.state} is not a member state") from None
    return CurrentAssignment(
        message.member_epoch,
        message.previous_member_epoch,
        state,
        _decode_epoched(message.assigned_partitions, message.member_epoch),
        _decode_epoched(message.partitions_pending_revocation, message.member_epoch),
    )


def _decode_epoched(
    rows: Iterable[wire.CurrentTopicPartitions], member_epoch: int
) -> dict[bytes, dict[int, int]]:
    """Decode partitions. Kafka before 4.3 did not write their epochs; the member epoch is the safe value."""
    found: dict[bytes, dict[int, int]] = {}
    for row in rows:
        epochs = row.assignment_epochs or [member_epoch] * len(row.partitions)
        if len(epochs) != len(row.partitions):
            raise KafkaWireError(f"{len(row.partitions)} partitions have {len(epochs)} epochs")
        if row.partitions:
            found[row.topic_id] = dict(zip(row.partitions, epochs, strict=True))
    return found


def _decode_expression(version: int, value: Buffer | None) -> ResolvedExpression | None:
    if value is None:
        return None
    message, _ = decode_as(wire.ConsumerGroupRegularExpressionValue, version, value, 2)
    return ResolvedExpression(frozenset(message.topics), message.version, message.timestamp)
