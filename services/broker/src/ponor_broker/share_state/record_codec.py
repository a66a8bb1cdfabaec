"""Encoding of the records of `__share_group_state`: Kafka's own format (docs/formats/share-group-state.md).

Keys and values start with a version. The version of a key is the kind of its record: 0 snapshot, 1 update.
Records with other keys stay in the log and are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from ponor_kafka.codec import decode_as, encode_versioned
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.messages.share_coordinator_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from ponor_kafka.messages.share_coordinator_records import StateBatch as StateBatchMessage
from ponor_kafka.primitives import Buffer

from ponor_broker.coordination.record_format import EntryCodec, RecordFormatError, version_of
from ponor_broker.coordination.share_persister import DeliveryState, SharePartitionKey, StateBatch
from ponor_broker.share_state.batches import merged
from ponor_broker.share_state.records import NO_OFFSET, ShareEntry, ShareSnapshot, ShareUpdate

_SNAPSHOT_KEY: Final = 0
_UPDATE_KEY: Final = 1
_VALUE_VERSION: Final = 0
_STATES: Final = {int(state): state for state in DeliveryState if state is not DeliveryState.ACQUIRED}


def encode_entry(entry: ShareEntry) -> tuple[bytes, bytes | None]:
    """Return key and value of an entry. A tombstone has the key of a snapshot, and no value."""
    group_id, topic_id, partition = entry.key
    if isinstance(entry.value, ShareUpdate):
        update_key = ShareUpdateKey(group_id, topic_id.bytes, partition)
        return encode_versioned(update_key, _UPDATE_KEY), _encode_update(entry.value)
    key = encode_versioned(ShareSnapshotKey(group_id, topic_id.bytes, partition), _SNAPSHOT_KEY)
    return key, None if entry.value is None else _encode_snapshot(entry.value)


def decode_entry(key: Buffer | None, value: Buffer | None) -> ShareEntry | None:
    """Return the entry of a record; None if the version of its key is unknown.

    Raises:
        RecordFormatError: the bytes are malformed, or of an unknown version.
    """
    if key is None:
        raise RecordFormatError("a record of __share_group_state has no key")
    try:
        kind = version_of(key)
        if kind == _SNAPSHOT_KEY:
            snapshot_key, _ = decode_as(ShareSnapshotKey, kind, key, 2)
            return ShareEntry(_key(snapshot_key), None if value is None else _decode_snapshot(value))
        if kind == _UPDATE_KEY:
            update_key, _ = decode_as(ShareUpdateKey, kind, key, 2)
            if value is None:
                raise KafkaWireError("an update has no value")
            return ShareEntry(_key(update_key), _decode_update(value))
    except KafkaWireError as error:
        raise RecordFormatError(
            f"record with key {bytes(key).hex()} of __share_group_state: {error}"
        ) from error
    return None


def _key(message: ShareSnapshotKey | ShareUpdateKey) -> SharePartitionKey:
    return SharePartitionKey(message.group_id, UUID(bytes=bytes(message.topic_id)), message.partition)


def _encode_snapshot(snapshot: ShareSnapshot) -> bytes:
    message = ShareSnapshotValue(
        snapshot_epoch=snapshot.snapshot_epoch,
        state_epoch=snapshot.state_epoch,
        leader_epoch=snapshot.leader_epoch,
        start_offset=snapshot.start_offset,
        delivery_complete_count=snapshot.delivery_complete_count,
        create_timestamp=snapshot.create_ms,
        write_timestamp=snapshot.write_ms,
        state_batches=[StateBatchMessage(*batch) for batch in snapshot.batches],
    )
    return encode_versioned(message, _VALUE_VERSION)


def _encode_update(update: ShareUpdate) -> bytes:
    message = ShareUpdateValue(
        snapshot_epoch=update.snapshot_epoch,
        leader_epoch=update.leader_epoch,
        start_offset=update.start_offset,
        delivery_complete_count=update.delivery_complete_count,
        state_batches=[StateBatchMessage(*batch) for batch in update.batches],
    )
    return encode_versioned(message, _VALUE_VERSION)


def _decode_snapshot(value: Buffer) -> ShareSnapshot:
    message, _ = decode_as(ShareSnapshotValue, version_of(value), value, 2)
    return ShareSnapshot(
        snapshot_epoch=message.snapshot_epoch,
        state_epoch=message.state_epoch,
        leader_epoch=message.leader_epoch,
        start_offset=message.start_offset,
        delivery_complete_count=message.delivery_complete_count,
        create_ms=message.create_timestamp,
        write_ms=message.write_timestamp,
        batches=_batches(message.state_batches),
    )


def _decode_update(value: Buffer) -> ShareUpdate:
    message, _ = decode_as(ShareUpdateValue, version_of(value), value, 2)
    return ShareUpdate(
        snapshot_epoch=message.snapshot_epoch,
        leader_epoch=message.leader_epoch,
        start_offset=message.start_offset,
        delivery_complete_count=message.delivery_complete_count,
        batches=_batches(message.state_batches),
    )


def _batches(rows: Iterable[StateBatchMessage]) -> tuple[StateBatch, ...]:
    batches: list[StateBatch] = []
    for row in rows:
        state = _STATES.get(row.delivery_state)
        if state is None or row.last_offset < row.first_offset:
            raise KafkaWireError(f"{row} is not a valid state batch")
        batches.append(StateBatch(row.first_offset, row.last_offset, state, row.delivery_count))
    return merged((), batches, NO_OFFSET)


CODEC: Final[EntryCodec[ShareEntry]] = EntryCodec(encode_entry, decode_entry)
"""For `coordination.record_log`."""
