"""A producer's batch, rule by rule, with the codes that Kafka answers."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from ponor_broker.partitions.batch_validation import BatchValidator
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topic_config import TopicConfig
from ponor_kafka.compression import Codec
from ponor_kafka.errors import ErrorCode
from ponor_kafka.record_builder import build_batch

NOW = 1_700_000_000_000
RECORDS = [(NOW, b"k", b"v"), (NOW + 1, None, b"w"), (NOW + 2, b"k", None)]
VALIDATOR = BatchValidator(validate_records_max=16)


def code_of(
    records: bytes | bytearray | None,
    *,
    version: int = 9,
    config: TopicConfig | None = None,
    max_checked: int = 16,
) -> ErrorCode:
    view = None if records is None else memoryview(bytearray(records))
    try:
        BatchValidator(validate_records_max=max_checked).validate(view, version, config or TopicConfig(), NOW)
    except PartitionError as error:
        return error.code
    return ErrorCode.NONE


def patched(position: int, layout: str, value: int, *, fix_crc: bool = True) -> bytearray:
    data = build_batch(RECORDS)
    struct.pack_into(layout, data, position, value)
    if fix_crc:
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return data


@pytest.mark.parametrize("codec", list(Codec))
def test_good_batches_of_every_codec_are_taken(codec: Codec) -> None:
    assert code_of(build_batch(RECORDS, codec=codec)) is ErrorCode.NONE


def test_exactly_one_batch_is_expected() -> None:
    assert code_of(None) is ErrorCode.INVALID_RECORD
    assert code_of(b"") is ErrorCode.INVALID_RECORD
    assert code_of(build_batch(RECORDS) + build_batch(RECORDS)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (patched(16, ">b", 1), ErrorCode.INVALID_RECORD),
        (patched(8, ">i", 1 << 20), ErrorCode.CORRUPT_MESSAGE),
        (patched(8, ">i", 3), ErrorCode.CORRUPT_MESSAGE),
        (patched(8, ">i", -5), ErrorCode.CORRUPT_MESSAGE),
        (patched(80, ">b", 77, fix_crc=False), ErrorCode.CORRUPT_MESSAGE),
        (patched(0, ">q", 5), ErrorCode.INVALID_RECORD),
        (patched(57, ">i", 0), ErrorCode.INVALID_RECORD),
        (patched(57, ">i", -3), ErrorCode.INVALID_RECORD),
        (patched(57, ">i", 4), ErrorCode.INVALID_RECORD),
        (patched(23, ">i", 7), ErrorCode.INVALID_RECORD),
        (patched(21, ">h", 0x20), ErrorCode.INVALID_RECORD),
        (patched(21, ">h", 0x10), ErrorCode.INVALID_TXN_STATE),
        (patched(21, ">h", 0x07), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (patched(43, ">q", 5), ErrorCode.INVALID_RECORD),
        (build_batch(RECORDS)[:30], ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_what_is_wrong_gets_kafka_s_code(data: bytearray, code: ErrorCode) -> None:
    assert code_of(data) is code


def test_counts_that_agree_with_each_other_and_not_with_the_records() -> None:
    data = build_batch(RECORDS)
    struct.pack_into(">i", data, 57, 2)
    struct.pack_into(">i", data, 23, 1)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    assert code_of(data) is ErrorCode.INVALID_RECORD
    assert code_of(data, max_checked=0) is ErrorCode.NONE  # the documented deviation for large batches


def test_a_count_that_no_bytes_can_hold_is_refused_without_a_walk() -> None:
    data = build_batch(RECORDS)
    struct.pack_into(">i", data, 57, 1000)
    struct.pack_into(">i", data, 23, 999)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    assert code_of(data, max_checked=0) is ErrorCode.INVALID_RECORD


def test_topic_settings_are_kept() -> None:
    assert (
        code_of(build_batch(RECORDS), config=TopicConfig(message_bytes_max=70)) is ErrorCode.MESSAGE_TOO_LARGE
    )
    assert code_of(build_batch(RECORDS), config=TopicConfig(is_compacted=True)) is ErrorCode.INVALID_RECORD
    ahead = build_batch([(NOW + 3_600_001, b"k", b"v")])
    assert code_of(ahead) is ErrorCode.INVALID_TIMESTAMP
    assert code_of(build_batch([(5, b"k", b"v")])) is ErrorCode.NONE
    assert (
        code_of(build_batch([(5, b"k", b"v")]), config=TopicConfig(timestamp_before_ms_max=1000))
        is ErrorCode.INVALID_TIMESTAMP
    )
    assert (
        code_of(build_batch(RECORDS, codec=Codec.ZSTD), version=6) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    )


def test_log_append_time_is_stamped_and_the_crc_follows() -> None:
    data = bytearray(build_batch(RECORDS))
    batch = VALIDATOR.validate(memoryview(data), 9, TopicConfig(is_log_append_time=True), NOW + 50)
    batch.check_crc()
    assert {record.timestamp for record in batch.records(1 << 20)} == {NOW + 50}


def test_resolve_puts_the_topic_s_own_settings_over_the_defaults() -> None:
    config = TopicConfig(message_bytes_max=5).resolve(
        {"segment.ms": "7", "cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"}
    )
    assert (config.message_bytes_max, config.segment_ms, config.is_compacted, config.is_log_append_time) == (
        5,
        7,
        True,
        True,
    )
