"""Encoding of the records of `__transaction_state`: Kafka's own format (docs/formats/transaction-state.md).

Keys and values start with a version. Key versions other than 0 belong to records that this broker does not
write; they stay in the log and are skipped.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.codec import decode_as, encode_versioned
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.messages.transaction_coordinator_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from ponor_kafka.primitives import Buffer
from ponor_runtime.identity import ProducerId

from ponor_broker.coordination.record_format import EntryCodec, RecordFormatError, version_of
from ponor_broker.transactions.records import TransactionEntry, TransactionRecord, TransactionState, by_topic

_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 1
"""The version that has the previous and the next producer id."""
_STATES: Final = frozenset(TransactionState) - {TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE}
"""States that a record may have."""


def encode_entry(entry: TransactionEntry) -> tuple[bytes, bytes | None]:
    """Return key and value of an entry; the value of a tombstone is None."""
    key = encode_versioned(TransactionLogKey(entry.key), _KEY_VERSION)
    return key, None if entry.value is None else _encode(entry.value)


def decode_entry(key: Buffer | None, value: Buffer | None) -> TransactionEntry | None:
    """Return the entry of a record; None if the version of its key is not 0.

    Raises:
        RecordFormatError: the bytes are malformed, or of an unknown version.
    """
    if key is None:
        raise RecordFormatError("a record of __transaction_state has no key")
    try:
        if version_of(key) != _KEY_VERSION:
            return None
        message, _ = decode_as(TransactionLogKey, _KEY_VERSION, key, 2)
        return TransactionEntry(message.transactional_id, None if value is None else _decode(value))
    except KafkaWireError as error:
        raise RecordFormatError(
            f"record with key {bytes(key).hex()} of __transaction_state: {error}"
        ) from error


def _encode(record: TransactionRecord) -> bytes:
    topics = [PartitionsSchema(topic, indexes) for topic, indexes in by_topic(record.partitions)]
    message = TransactionLogValue(
        producer_id=record.producer_id,
        previous_producer_id=record.previous_producer_id,
        next_producer_id=record.next_producer_id,
        producer_epoch=record.producer_epoch,
        transaction_timeout_ms=record.timeout_ms,
        transaction_status=record.state,
        # Null, not empty, as Kafka writes it.
        transaction_partitions=None if record.state is TransactionState.EMPTY else topics,
        transaction_last_update_timestamp_ms=record.update_ms,
        transaction_start_timestamp_ms=record.start_ms,
        client_transaction_version=record.client_version,
    )
    return encode_versioned(message, _VALUE_VERSION)


def _decode(value: Buffer) -> TransactionRecord:
    message, _ = decode_as(TransactionLogValue, version_of(value), value, 2)
    if message.transaction_status not in _STATES:
        raise KafkaWireError(f"{message.transaction_status} is not a valid transaction state")
    partitions = [
        (topic.topic, index)
        for topic in message.transaction_partitions or ()
        for index in topic.partition_ids
    ]
    return TransactionRecord(
        producer_id=ProducerId(message.producer_id),
        producer_epoch=message.producer_epoch,
        timeout_ms=message.transaction_timeout_ms,
        state=TransactionState(message.transaction_status),
        update_ms=message.transaction_last_update_timestamp_ms,
        start_ms=message.transaction_start_timestamp_ms,
        partitions=frozenset(partitions),
        previous_producer_id=ProducerId(message.previous_producer_id),
        next_producer_id=ProducerId(message.next_producer_id),
        client_version=message.client_transaction_version,
    )


CODEC: Final[EntryCodec[TransactionEntry]] = EntryCodec(encode_entry, decode_entry)
"""For `coordination.record_log`."""
