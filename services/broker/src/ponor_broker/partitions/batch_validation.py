"""Validation of a producer's record batch (docs/design/kafka-protocol-and-produce-path.md#record-validation).

Implements the rules of `LogValidator` (Apache Kafka 4.3) in Kafka's order and with Kafka's error
codes, and Kafka's changes to the batch: codec and timestamps. No I/O.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from ponor_kafka.compression import Codec
from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.lz4_frames import check_readable_by_kafka
from ponor_kafka.primitives import Buffer
from ponor_kafka.recompression import recompressed
from ponor_kafka.record_batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    NO_PRODUCER_ID,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchView,
    OldRecordFormatError,
    split_batches,
)
from ponor_kafka.record_rules import INT64_MAX, INT64_MIN, RecordFault, RecordWalk
from ponor_kafka.record_walk import walk_records
from s3stream.errors import AppendBackpressureError

from ponor_broker.partitions.errors import NotOneBatchError, PartitionError, RecordError
from ponor_broker.partitions.topics.topic_config import TopicConfig

ZSTD_PRODUCE_VERSION_MIN: Final = 7
RECORD_ERRORS_MAX: Final = 1_000
"""Refused records that an answer lists individually. The error message of a batch contains the number of all
its refused records."""
SCRATCH_BYTES: Final = 1 << 20
"""Size of the reused buffer; larger batches are decompressed into a new one."""
_LZ4: Final = int(Codec.LZ4)
_ZSTD: Final = int(Codec.ZSTD)
_CODECS: Final = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE}
_PRODUCER: Final = "producer"
_LEVELED: Final = bytes((Codec.GZIP, Codec.LZ4, Codec.ZSTD))
"""Codecs with a level, in the order of `TopicConfig.compression_levels`."""


class ValidBatch(NamedTuple):
    """A batch that may be appended. `min_timestamp` is a lower bound of the records' timestamps (-1 if a
    record has none); `INT64_MIN` if unknown.
    """

    batch: BatchView
    min_timestamp: int


class RequestShare:
    """Use of the bounds that all batches of one request share. One event-loop turn validates all of these
    batches, and a batch of 2 KB may decompress to 60 MiB, or contain a thousand wrong records.
    """

    __slots__ = ("decompressed_bytes", "record_errors")

    def __init__(self) -> None:
        self.decompressed_bytes = 0
        """Decompressed bytes of all compressed batches so far."""
        self.record_errors = 0
        """Records that the answer lists so far."""


class BatchValidator:
    """The rules, with this broker's bound on decompression."""

    def __init__(self, *, decompressed_batch_bytes_max: int) -> None:
        self._decompressed_bytes_max = decompressed_batch_bytes_max
        self._scratch = bytearray(min(SCRATCH_BYTES, decompressed_batch_bytes_max))

    def validate(
        self,
        records: memoryview | None,
        version: int,
        config: TopicConfig,
        now_ms: int,
        share: RequestShare | None = None,
    ) -> ValidBatch:
        """Return the batch to append: the original, changed in place, or a new one with the topic's codec.
        `share` counts over all batches of the request; None if it has one.

        Raises:
            PartitionError: with Kafka's code, and the records concerned.
            AppendBackpressureError: earlier batches used up the request's share; the client must retry this
            one.
        """
        batch = _only_batch(records)
        if batch.base_offset != 0:
            raise _invalid(f"the base offset of a producer's batch must be 0, not {batch.base_offset}")
        _check_size(batch, config)
        try:
            batch.check_crc()
        except KafkaWireError as error:
            raise PartitionError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        codec = batch.attributes & CODEC_MASK
        share = RequestShare() if share is None else share
        if codec:
            _check_codec(codec, version)
            self._check_share(share)
        _check_header(batch)
        data, walk = self._walk(batch, config, now_ms, share)
        if walk.faults or (batch.attributes & TIMESTAMP_TYPE_BIT and config.is_log_append_time):
            raise _refused_records(batch, walk, config, now_ms, share)
        if config.compression != _PRODUCER and (target := _CODECS[config.compression]) != codec:
            batch = recompressed(batch, data, target, _level(target, config))
            _check_size(batch, config)
        if batch.size_bytes > config.segment_bytes:
            raise PartitionError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {batch.size_bytes} bytes exceeds segment.bytes, {config.segment_bytes}",
            )
        if config.is_log_append_time:
            batch.set_log_append_time(now_ms)
            return ValidBatch(batch, now_ms)
        if batch.attributes & TIMESTAMP_TYPE_BIT:
            walk = _own_timestamps(batch, data, walk)
        min_timestamp = walk.min_timestamp
        batch.set_create_time(walk.max_timestamp)
        return ValidBatch(batch, min_timestamp)

    def _check_share(self, share: RequestShare) -> None:
        """Refuse a compressed batch if earlier batches of its request used up the bound of a single batch."""
        if share.decompressed_bytes >= self._decompressed_bytes_max:
            raise AppendBackpressureError(
                f"earlier batches of the request decompress to {share.decompressed_bytes} bytes; send this"
                " batch again"
            )

    def _walk(
        self, batch: BatchView, config: TopicConfig, now_ms: int, share: RequestShare
    ) -> tuple[Buffer, RecordWalk]:
        """Check every record; return the uncompressed records, which may be in the scratch buffer."""
        is_fixed = bool(batch.attributes & TIMESTAMP_TYPE_BIT)
        timestamp_min, timestamp_max = _timestamp_bounds(config, now_ms)
        try:
            if batch.attributes & CODEC_MASK == _LZ4:
                check_readable_by_kafka(batch.view[HEADER_BYTES:])
            data = self._uncompressed(batch, share)
            walk = walk_records(
                data,
                batch.record_count,
                batch.max_timestamp if is_fixed else batch.first_timestamp,
                is_fixed,
                config.is_compacted,
                timestamp_min,
                timestamp_max,
                # Collect at least one fault: without any, the batch would count as valid.
                max(RECORD_ERRORS_MAX - share.record_errors, 1),
            )
        except KafkaWireError as error:
            raise _invalid(str(error)) from error
        return data, walk

    def _uncompressed(self, batch: BatchView, share: RequestShare) -> Buffer:
        bytes_max = self._decompressed_bytes_max
        if not batch.attributes & CODEC_MASK:
            return batch.uncompressed(bytes_max)
        taken_bytes = bytes_max  # also counted if the decompression fails: its size is then unknown
        try:
            data = batch.uncompressed(bytes_max, self._scratch)
            taken_bytes = len(data)
        finally:
            share.decompressed_bytes += taken_bytes
        return data


def _own_timestamps(batch: BatchView, data: Buffer, checked: RecordWalk) -> RecordWalk:
    """Return the walk of a batch whose producer set timestamp type LogAppendTime: one time for all records.

    The broker checked only that time, but stores the batch with type CreateTime, so that the records' own
    timestamps apply. The header gets the smaller maximum of the two. A search by time that decompresses the
    batch because of its header must find a record, and an unchecked time must not determine a segment's age.
    """
    own = walk_records(data, batch.record_count, batch.first_timestamp, False, False, INT64_MIN, INT64_MAX, 0)
    return own._replace(max_timestamp=min(own.max_timestamp, checked.max_timestamp))


def _only_batch(records: memoryview | None) -> BatchView:
    if records:
        with contextlib.suppress(KafkaWireError):
            return BatchView(records)  # the batch fills the field, so it is the only one
    try:
        batches = list(split_batches(records)) if records else []
    except OldRecordFormatError as error:
        raise NotOneBatchError(str(error)) from error
    except KafkaWireError as error:
        raise PartitionError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if len(batches) != 1:
        raise NotOneBatchError(f"exactly one record batch per partition is expected, found {len(batches)}")
    return batches[0]


def _check_size(batch: BatchView, config: TopicConfig) -> None:
    if batch.size_bytes > config.message_bytes_max:
        raise PartitionError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a batch of {batch.size_bytes} bytes exceeds max.message.bytes, {config.message_bytes_max}",
        )


def _check_codec(codec: int, version: int) -> None:
    if codec > _ZSTD:
        raise PartitionError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression codec {codec} is unknown")
    if codec == _ZSTD and version < ZSTD_PRODUCE_VERSION_MIN:
        raise PartitionError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce version {ZSTD_PRODUCE_VERSION_MIN} or newer",
        )


def _check_header(batch: BatchView) -> None:
    if batch.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
        if batch.is_control:
            raise _invalid("a client may not write control batches")
        if batch.producer_id == NO_PRODUCER_ID:
            raise _invalid("a transactional batch needs a producer id")
    count = batch.record_count
    if count <= 0 or count != batch.last_offset_delta + 1:
        raise _invalid(f"the batch has {count} records for {batch.last_offset_delta + 1} offsets")
    if (
        batch.producer_id != NO_PRODUCER_ID
        and min(batch.producer_id, batch.base_sequence, batch.producer_epoch) < 0
    ):
        raise _invalid(f"producer {batch.producer_id}: epoch or sequence is negative")


def _level(codec: Codec, config: TopicConfig) -> int | None:
    at = _LEVELED.find(codec)
    return None if at < 0 else config.compression_levels[at]


def _timestamp_bounds(config: TopicConfig, now_ms: int) -> tuple[int, int]:
    if config.is_log_append_time:
        return INT64_MIN, INT64_MAX
    return (
        max(now_ms - config.timestamp_before_ms_max, INT64_MIN),
        min(now_ms + config.timestamp_after_ms_max, INT64_MAX),
    )


def _refused_records(
    batch: BatchView, walk: RecordWalk, config: TopicConfig, now_ms: int, share: RequestShare
) -> PartitionError:
    """Build the error for well-formed records that the topic does not allow: one line for each record, as far
    as the request's share allows, and a summary.
    """
    room = RECORD_ERRORS_MAX - share.record_errors
    error = _listed(batch, walk, config, now_ms, room)
    share.record_errors += len(error.record_errors)
    return error


def _listed(
    batch: BatchView, walk: RecordWalk, config: TopicConfig, now_ms: int, room: int
) -> PartitionError:
    if batch.attributes & TIMESTAMP_TYPE_BIT and config.is_log_append_time:
        wrong_type = "only the broker may set the timestamp type LogAppendTime"
        errors = [RecordError(index, wrong_type) for index in range(min(batch.record_count, room))]
        return PartitionError(ErrorCode.INVALID_TIMESTAMP, wrong_type, errors)
    errors = _describe(walk.faults[:room], _timestamp_bounds(config, now_ms))
    if walk.bad_timestamps:
        message = f"{walk.bad_timestamps} of {batch.record_count} records have timestamps out of range"
        return PartitionError(ErrorCode.INVALID_TIMESTAMP, message, errors)
    message = f"{walk.missing_keys} of {batch.record_count} records have no key, and the topic is compacted"
    return PartitionError(ErrorCode.INVALID_RECORD, message, errors)


def _describe(faults: Sequence[RecordFault], bounds: tuple[int, int]) -> list[RecordError]:
    return [
        RecordError(
            fault.record,
            "a record of a compacted topic needs a key"
            if fault.lacks_key
            else f"timestamp {fault.timestamp} is not within {bounds[0]}..{bounds[1]}",
        )
        for fault in faults
    ]


def _invalid(message: str) -> PartitionError:
    return PartitionError(ErrorCode.INVALID_RECORD, message)
