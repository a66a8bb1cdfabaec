"""Encoding of the records of `__consumer_offsets`: Kafka's own format
(docs/formats/consumer-offsets.md).

Keys and values start with a version. The version of a key is also its kind: 0 and 1 for an offset commit, 2
for a classic group, 3, 5 to 8 and 16 for a consumer group, 10 to 15 for a share group, 17 and 19 to 23 for a
streams group. Keys with other versions belong to other kinds of groups. This broker does not write them; it
skips them and leaves them in the log.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from ponor_kafka.codec import decode_as, encode_versioned
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.message import ZERO_UUID
from ponor_kafka.messages.group_coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ponor_kafka.primitives import Buffer

from ponor_broker.coordination.record_format import EntryCodec, RecordFormatError, version_of
from ponor_broker.groups.consumer.record_codec import (
    CONSUMER_KEYS,
    decode_consumer_entry,
    encode_consumer_entry,
)
from ponor_broker.groups.consumer.records import ConsumerEntry
from ponor_broker.groups.records import (
    NO_TIMESTAMP,
    CommittedOffset,
    GroupEntry,
    GroupKey,
    GroupRecord,
    MemberRecord,
    OffsetEntry,
    OffsetKey,
)
from ponor_broker.groups.share.record_codec import SHARE_KEYS, decode_share_entry, encode_share_entry
from ponor_broker.groups.share.records import ShareEntry, ShareGroupEntry, StatePartitionsEntry
from ponor_broker.groups.streams.record_codec import (
    STREAMS_KEYS,
    decode_streams_entry,
    encode_streams_entry,
)
from ponor_broker.groups.streams.records import StreamsEntry

Entry: TypeAlias = OffsetEntry | GroupEntry | ConsumerEntry | ShareGroupEntry | StreamsEntry
"""A record of any kind."""
_OFFSET_KEY_VERSION = 1
_GROUP_KEY_VERSION = 2
_GROUP_VALUE_VERSION = 3
"""The version that Kafka writes. Version 4 differs only by compact lengths."""
_OFFSET_VALUE_VERSION = 4
"""The version with a topic id."""
_EXPIRING_OFFSET_VALUE_VERSION = 1
"""The version that Kafka writes for a commit with an expiry. It has neither leader epoch nor topic id."""


def encode_entry(entry: Entry) -> tuple[bytes, bytes | None]:
    """Return key and value of an entry; the value of a tombstone is None."""
    if isinstance(entry, OffsetEntry):
        return _encode_offset_key(entry.key), None if entry.value is None else _encode_offset(entry.value)
    if isinstance(entry, ShareEntry | StatePartitionsEntry):
        return encode_share_entry(entry)
    if isinstance(entry, StreamsEntry):
        return encode_streams_entry(entry)
    if not isinstance(entry, GroupEntry):
        return encode_consumer_entry(entry)
    key = encode_versioned(GroupMetadataKey(entry.key.group_id), _GROUP_KEY_VERSION)
    return key, None if entry.value is None else _encode_group(entry.value)


def decode_entry(key: Buffer | None, value: Buffer | None) -> Entry | None:
    """Return the entry of a record; None if the record is of a kind to skip.

    Raises:
        RecordFormatError: the bytes are malformed, or of an unknown version.
    """
    if key is None:
        raise RecordFormatError("a record of __consumer_offsets has no key")
    try:
        return _decode(bytes(key), value)
    except KafkaWireError as error:
        raise RecordFormatError(
            f"record with key {bytes(key).hex()} of __consumer_offsets: {error}"
        ) from error


def _decode(key: bytes, value: Buffer | None) -> Entry | None:
    kind = int.from_bytes(key[:2], "big", signed=True)
    if len(key) < 2 or kind < 0:
        raise KafkaWireError("the key has no version")
    if kind <= _OFFSET_KEY_VERSION:
        offset_key, _ = decode_as(OffsetCommitKey, kind, key, 2)
        owner = OffsetKey(offset_key.group, offset_key.topic, offset_key.partition)
        return OffsetEntry(owner, None if value is None else _decode_offset(value))
    if kind == _GROUP_KEY_VERSION:
        group_key, _ = decode_as(GroupMetadataKey, kind, key, 2)
        return GroupEntry(GroupKey(group_key.group), None if value is None else _decode_group(value))
    if kind in SHARE_KEYS:
        return decode_share_entry(kind, key, value)
    if kind in STREAMS_KEYS:
        return decode_streams_entry(kind, key, value)
    return decode_consumer_entry(kind, key, value) if kind in CONSUMER_KEYS else None


def _encode_offset_key(key: OffsetKey) -> bytes:
    return encode_versioned(OffsetCommitKey(key.group_id, key.topic, key.partition), _OFFSET_KEY_VERSION)


def _encode_offset(committed: CommittedOffset) -> bytes:
    message = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
        topic_id=committed.topic_id or ZERO_UUID,
    )
    is_expiring = committed.expire_timestamp_ms != NO_TIMESTAMP
    return encode_versioned(message, _EXPIRING_OFFSET_VALUE_VERSION if is_expiring else _OFFSET_VALUE_VERSION)


def _decode_offset(value: Buffer) -> CommittedOffset:
    message, _ = decode_as(OffsetCommitValue, version_of(value), value, 2)
    return CommittedOffset(
        offset=message.offset,
        leader_epoch=message.leader_epoch,
        metadata=message.metadata,
        commit_timestamp_ms=message.commit_timestamp,
        expire_timestamp_ms=message.expire_timestamp,
        topic_id=None if message.topic_id == ZERO_UUID else message.topic_id,
    )


def _encode_group(record: GroupRecord) -> bytes:
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in record.members
    ]
    message = GroupMetadataValue(
        protocol_type=record.protocol_type,
        generation=record.generation,
        protocol=record.protocol_name,
        leader=record.leader,
        current_state_timestamp=record.state_timestamp_ms,
        members=members,
    )
    return encode_versioned(message, _GROUP_VALUE_VERSION)


def _decode_group(value: Buffer) -> GroupRecord:
    version = version_of(value)
    message, _ = decode_as(GroupMetadataValue, version, value, 2)
    return GroupRecord(
        protocol_type=message.protocol_type,
        generation=message.generation,
        protocol_name=message.protocol,
        leader=message.leader,
        state_timestamp_ms=message.current_state_timestamp,
        members=tuple(
            MemberRecord(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout if version >= 1 else member.session_timeout,
                session_timeout_ms=member.session_timeout,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in message.members
        ),
    )


CODEC: Final[EntryCodec[Entry]] = EntryCodec(encode_entry, decode_entry)
"""For `coordination.record_log`."""
