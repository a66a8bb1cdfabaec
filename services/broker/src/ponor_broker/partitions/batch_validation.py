"""What a producer's record batch must fulfil before a partition takes it (docs/decisions/0005-header-only-validation.md).

What lives here: Kafka's rules for one partition's records of a Produce request, in Kafka's order, with Kafka's error codes. Pure.

Every batch is checked by its header and its CRC. Records are looked at one by one in small batches and for compacted topics; Kafka does it
for all. In Python that walk would cost more than everything else a broker does with a large batch.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.compression import Codec
from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.record_batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    NO_PRODUCER_ID,
    TRANSACTIONAL_BIT,
    BatchView,
    OldRecordFormatError,
    split_batches,
)
from ponor_kafka.records import RECORD_BYTES_MIN

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topic_config import TopicConfig

ZSTD_PRODUCE_VERSION_MIN: Final = 7
_UNCOMPRESSED: Final = int(Codec.NONE)
_ZSTD: Final = int(Codec.ZSTD)
DECOMPRESSED_BYTES_MAX: Final = 64 << 20
"""What a checked batch may grow to; only small or compacted ones are decompressed at all."""


class BatchValidator:
    """Rules that are the same for every partition of this broker."""

    def __init__(self, *, validate_records_max: int) -> None:
        self._validate_records_max = validate_records_max

    def validate(
        self, records: memoryview | None, version: int, config: TopicConfig, now_ms: int
    ) -> BatchView:
        """The one batch of a partition's records.

        Raises:
            PartitionError: with the code that Kafka answers.
        """
        batch = _only_batch(records)
        if batch.size_bytes > config.message_bytes_max:
            raise PartitionError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {batch.size_bytes} bytes is above max.message.bytes, {config.message_bytes_max}",
            )
        try:
            batch.check_crc()
        except KafkaWireError as error:
            raise PartitionError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        codec = _checked_codec(batch, version)
        _check_header(batch, codec)
        if batch.record_count <= self._validate_records_max or config.is_compacted:
            _check_records(batch, is_compacted=config.is_compacted)
        if config.is_log_append_time:
            batch.set_log_append_time(now_ms)
        else:
            _check_timestamps(batch, config, now_ms)
        return batch


def _only_batch(records: memoryview | None) -> BatchView:
    try:
        batches = list(split_batches(records)) if records else []
    except OldRecordFormatError as error:
        raise PartitionError(ErrorCode.INVALID_RECORD, str(error)) from error
    except KafkaWireError as error:
        raise PartitionError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if len(batches) != 1:
        raise PartitionError(
            ErrorCode.INVALID_RECORD,
            f"exactly one record batch per partition is expected, found {len(batches)}",
        )
    return batches[0]


def _checked_codec(batch: BatchView, version: int) -> int:
    codec = batch.attributes & CODEC_MASK
    if codec > _ZSTD:
        raise PartitionError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no codec has the number {codec}")
    if codec == _ZSTD and version < ZSTD_PRODUCE_VERSION_MIN:
        raise PartitionError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {ZSTD_PRODUCE_VERSION_MIN} or newer"
        )
    return codec


def _check_header(batch: BatchView, codec: int) -> None:
    if batch.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
        if batch.is_control:
            raise _invalid("a client may not write control batches")
        raise PartitionError(ErrorCode.INVALID_TXN_STATE, "there are no transactions on this broker yet")
    if batch.base_offset != 0:
        raise _invalid(f"a producer's batch has base offset 0, not {batch.base_offset}")
    count = batch.record_count
    if count <= 0 or count != batch.last_offset_delta + 1:
        raise _invalid(f"{count} records do not take {batch.last_offset_delta + 1} offsets")
    if (
        batch.producer_id != NO_PRODUCER_ID
        and min(batch.producer_id, batch.base_sequence, batch.producer_epoch) < 0
    ):
        raise _invalid(f"producer {batch.producer_id}: epoch or sequence is negative")
    if codec == _UNCOMPRESSED and count * RECORD_BYTES_MIN > len(batch.view) - HEADER_BYTES:
        raise _invalid(f"{batch.size_bytes} bytes cannot hold {count} records")


def _check_records(batch: BatchView, *, is_compacted: bool) -> None:
    try:
        batch.check_records(DECOMPRESSED_BYTES_MAX)
        if is_compacted and any(record.key is None for record in batch.records(DECOMPRESSED_BYTES_MAX)):
            raise _invalid("a record of a compacted topic has no key")
    except KafkaWireError as error:
        raise _invalid(str(error)) from error


def _check_timestamps(batch: BatchView, config: TopicConfig, now_ms: int) -> None:
    ahead_ms = batch.max_timestamp - now_ms
    if ahead_ms > config.timestamp_after_ms_max:
        raise PartitionError(
            ErrorCode.INVALID_TIMESTAMP, f"a timestamp is {ahead_ms} ms ahead of the broker's clock"
        )
    behind_ms = now_ms - batch.first_timestamp
    if behind_ms > config.timestamp_before_ms_max:
        raise PartitionError(
            ErrorCode.INVALID_TIMESTAMP, f"a timestamp is {behind_ms} ms behind the broker's clock"
        )


def _invalid(message: str) -> PartitionError:
    return PartitionError(ErrorCode.INVALID_RECORD, message)
