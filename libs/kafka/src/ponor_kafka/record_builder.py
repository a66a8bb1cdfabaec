"""Builder of record batches of format v2, for internal topics, control records and tests."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from ponor_kafka.compression import Codec, compress
from ponor_kafka.primitives import Buffer
from ponor_kafka.record_batch import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    CONTROL_BIT,
    CRC_POSITION,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from ponor_kafka.records import append_record

NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
CRC_END: Final = CRC_POSITION + 4


class NewRecord(NamedTuple):
    """A record to write. The timestamp is in milliseconds; None as key or value means null."""

    timestamp: int
    key: Buffer | None
    value: Buffer | None
    headers: Sequence[tuple[str, Buffer | None]] = ()


def build_batch(
    records: Sequence[NewRecord | tuple[int, Buffer | None, Buffer | None]],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time_ms: int | None = None,
) -> bytearray:
    """Build one batch of `records` with consecutive offsets from `base_offset`.

    `log_append_time_ms` becomes the timestamp of all records. Compaction may leave an empty batch.
    """
    whole = [NewRecord(*record) for record in records]
    first_timestamp = whole[0].timestamp if whole else NO_TIMESTAMP
    data = bytearray()
    for index, record in enumerate(whole):
        append_record(
            data,
            timestamp_delta=record.timestamp - first_timestamp,
            offset_delta=index,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
    body = compress(codec, data)
    attributes = codec | (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    max_timestamp = max((record.timestamp for record in whole), default=NO_TIMESTAMP)
    if log_append_time_ms is not None:
        attributes |= TIMESTAMP_TYPE_BIT
        max_timestamp = log_append_time_ms
    batch = bytearray(
        BATCH_HEADER.pack(
            base_offset,
            HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body),
            leader_epoch,
            MAGIC,
            0,
            attributes,
            max(0, len(whole) - 1),
            first_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            len(whole),
        )
    )
    batch += body
    batch[CRC_POSITION:CRC_END] = crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]).to_bytes(4, "big")
    return batch
