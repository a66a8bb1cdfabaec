"""Parsing of a plain Produce request in Python: the oracle of the compiled `ponor_kafka.plain_produce`."""

from __future__ import annotations

from struct import Struct as PackedRun
from typing import Final, TypeAlias

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.headers import RequestHeader, decode_request_header
from ponor_kafka.produce_walk import FLEXIBLE_MIN, VERSION_MAX, VERSION_MIN, walk_one_partition
from ponor_kafka.record_batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, NO_PRODUCER_ID, BatchView
from ponor_kafka.record_rules import INT64_MAX, INT64_MIN

from libs.kafka.tests.record_walk_oracle import walk_records

PlainProduce: TypeAlias = tuple[int, int, int, str | bytes, int, int, int, int, int, int, int]
"""Of the request: version, correlation id, timeout in ms, topic (its id from version 13), partition. Of the
batch: position and size in the frame, number of records, producer id, producer epoch, base sequence.

A tuple, because unpacking it is one instruction; creating an object would cost as much as the parsing.
"""

PlainRecords: TypeAlias = tuple[int, int, bool]
"""Largest timestamp (-1: none), smallest timestamp (-1 if a record has none; 2^63 - 1 without records),
whether a record lacks a key."""

_EMPTY_TAGS: Final = 0
_STAMP: Final = PackedRun(">qii")
_ACKS: Final = (-1, 1)


def read_plain_produce(frame: bytearray) -> PlainProduce | None:
    """Parse a request frame (without its length) up to the header of its batch.

    None if the request is not plain.

    `walk_plain_batch` verifies checksum and records. Topics that rewrite batches do not need that here.
    """
    header = _header(frame)
    if header is None:
        return None
    one = walk_one_partition(header.api_version, frame, header.body_position)
    if one is None or one.acks not in _ACKS or not (isinstance(one.topic, bytes) or one.topic.isascii()):
        return None
    try:
        batch = BatchView(one.records)
    except KafkaWireError:
        return None
    if batch.base_offset != 0 or batch.attributes != 0 or not _is_counted(batch):
        return None
    return (
        header.api_version,
        header.correlation_id,
        one.timeout_ms,
        one.topic,
        one.partition,
        _position(header, frame, batch),
        batch.size_bytes,
        batch.record_count,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
    )


def walk_plain_batch(frame: bytearray, position: int, size_bytes: int) -> PlainRecords | None:
    """Verify checksum, records and largest timestamp of the batch found by `read_plain_produce`.

    None if one is wrong.

    Raises:
        ValueError: position and size are outside the frame.
    """
    _check_place(frame, position, size_bytes)
    batch = BatchView(memoryview(frame)[position : position + size_bytes])
    data, count = batch.view[HEADER_BYTES:], batch.record_count
    try:
        batch.check_crc()
        found = walk_records(data, count, batch.first_timestamp, False, True, INT64_MIN, INT64_MAX, 0)
    except KafkaWireError:
        return None
    if found.max_timestamp != batch.max_timestamp:
        return None
    return found.max_timestamp, found.min_timestamp, found.missing_keys > 0


def stamped_copy(
    frame: bytearray, position: int, size_bytes: int, base_offset: int, leader_epoch: int
) -> bytes:
    """Copy the batch at a position of a frame and set base offset and leader epoch in the copy.

    Raises:
        ValueError: position and size are outside the frame.
    """
    _check_place(frame, position, size_bytes)
    stamp = _STAMP.pack(base_offset, size_bytes - LENGTH_PREFIX_BYTES, leader_epoch)
    return stamp + frame[position + _STAMP.size : position + size_bytes]


def _check_place(frame: bytearray, position: int, size_bytes: int) -> None:
    if position < 0 or size_bytes < HEADER_BYTES or size_bytes > len(frame) - position:
        raise ValueError(f"no batch of {size_bytes} bytes at {position} of {len(frame)}")


def _header(frame: bytearray) -> RequestHeader | None:
    """Decode the header of a Produce request without tagged fields; None for any other."""
    try:
        header = decode_request_header(frame)
    except KafkaWireError:
        return None
    if header.api_key != ApiKey.PRODUCE or not VERSION_MIN <= header.api_version <= VERSION_MAX:
        return None
    if header.client_id is not None and not header.client_id.isascii():
        return None
    if header.api_version >= FLEXIBLE_MIN and (
        frame[header.body_position - 1] != _EMPTY_TAGS
        or header.body_position != 10 + len(header.client_id or "") + 1
    ):
        return None
    return header


def _is_counted(batch: BatchView) -> bool:
    """Whether count and offsets agree, and a producer id comes with epoch and sequence."""
    if batch.record_count <= 0 or batch.record_count - 1 != batch.last_offset_delta:
        return False
    return (
        batch.producer_id == NO_PRODUCER_ID
        or min(batch.producer_id, batch.producer_epoch, batch.base_sequence) >= 0
    )


def _position(header: RequestHeader, frame: bytearray, batch: BatchView) -> int:
    """Start of the batch. It ends with the body, or before the three empty tag buffers at its end."""
    behind = 3 if header.api_version >= FLEXIBLE_MIN else 0
    return len(frame) - behind - batch.size_bytes
