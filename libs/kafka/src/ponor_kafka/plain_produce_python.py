"""A plain Produce request in Python: the fallback, and the readable statement of what the compiled reading accepts.

What lives here: what "plain" means, in terms of the parts that read every request: a header with an ASCII client id, one topic with an ASCII
name, one partition, acks 1 or -1, no transaction, no tagged fields; in it one uncompressed batch of format 2 with attributes of zero, an intact
checksum, well-formed records, and the largest of their timestamps in its header. Whatever else comes is not judged here: it takes the long
way, which accepts it too or says what is wrong.
"""

from __future__ import annotations

from struct import Struct as PackedRun
from typing import Final, TypeAlias

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.headers import RequestHeader, decode_request_header
from ponor_kafka.produce_walk import FLEXIBLE_MIN, VERSION_MAX, VERSION_MIN, walk_one_partition
from ponor_kafka.record_batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, NO_PRODUCER_ID, BatchView
from ponor_kafka.record_rules import INT64_MAX, INT64_MIN
from ponor_kafka.record_walk_python import walk_records

PlainProduce: TypeAlias = tuple[int, int, int, str | bytes, int, int, int, int, int, int, int]
"""Of the request: version, correlation id, timeout in ms, topic (its id from version 13 on), partition. Of the batch: position and bytes in
the frame, number of records, producer id, producer epoch, base sequence.

A tuple, because taking it apart is one instruction; an object would cost as much as the reading."""

PlainRecords: TypeAlias = tuple[int, int, bool]
"""Largest timestamp (-1 for none), smallest timestamp, -1 ("none") among them (2^63 - 1 without records), and whether a record lacks a key."""

_EMPTY_TAGS: Final = 0
_STAMP: Final = PackedRun(">qii")
_ACKS: Final = (-1, 1)


def read_plain_produce(frame: bytearray) -> PlainProduce | None:
    """Read a request frame (without its length) up to the header of its batch; None if it is not plain, see above.

    Checksum and records are `walk_plain_batch`'s: topics that change what is sent need neither of them here.
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
    """Check checksum and records of the batch that `read_plain_produce` found; None if anything is wrong, or the header's largest timestamp.

    Raises:
        ValueError: no batch of this size can lie there.
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
    """The batch at a position of a frame as bytes of its own, with base offset and leader epoch set; the frame stays as it is.

    Raises:
        ValueError: no batch of this size can lie there.
    """
    _check_place(frame, position, size_bytes)
    stamp = _STAMP.pack(base_offset, size_bytes - LENGTH_PREFIX_BYTES, leader_epoch)
    return stamp + frame[position + _STAMP.size : position + size_bytes]


def _check_place(frame: bytearray, position: int, size_bytes: int) -> None:
    if position < 0 or size_bytes < HEADER_BYTES or size_bytes > len(frame) - position:
        raise ValueError(f"no batch of {size_bytes} bytes lies at {position} of {len(frame)}")


def _header(frame: bytearray) -> RequestHeader | None:
    """The header of a Produce request that needs nothing to be skipped."""
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
    """Whether count and offsets agree, and a producer's epoch and sequence are there."""
    if batch.record_count <= 0 or batch.record_count - 1 != batch.last_offset_delta:
        return False
    return (
        batch.producer_id == NO_PRODUCER_ID
        or min(batch.producer_id, batch.producer_epoch, batch.base_sequence) >= 0
    )


def _position(header: RequestHeader, frame: bytearray, batch: BatchView) -> int:
    """Where the batch starts: it ends with the body, or before the three empty tag buffers that do."""
    behind = 3 if header.api_version >= FLEXIBLE_MIN else 0
    return len(frame) - behind - batch.size_bytes
