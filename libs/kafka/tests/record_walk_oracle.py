"""Validation of a batch's records in Python: the oracle of the compiled `ponor_kafka.record_walk`.

The rules are those of Apache Kafka 4.3 (`DefaultRecord.readFrom`, `LogValidator.validateRecord`). As in Java,
lengths and counts are varints of at most five bytes that wrap at 32 bits; timestamp deltas have at most ten
bytes and wrap at 64 bits.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.primitives import Buffer
from ponor_kafka.record_rules import INT64_MAX, NO_TIMESTAMP, RecordFault, RecordWalk, Rule, malformed

_VARINT_BYTES_MAX: Final = 5
_VARLONG_BYTES_MAX: Final = 10


def walk_records(
    data: Buffer,
    count: int,
    base_timestamp: int,
    is_fixed_timestamp: bool,
    keys_required: bool,
    timestamp_min: int,
    timestamp_max: int,
    faults_max: int,
) -> RecordWalk:
    """Check that `count` records are well-formed, and collect faults.

    Args:
        data: the records, which must fill it exactly.
        count: number of records.
        base_timestamp: base of the records' deltas; the timestamp of all records if `is_fixed_timestamp`.
        is_fixed_timestamp: whether all records have one timestamp (LogAppendTime).
        keys_required: whether a record without a key is a fault (compacted topics).
        timestamp_min: a smaller timestamp is a fault, except -1 ("none").
        timestamp_max: a larger timestamp is a fault.
        faults_max: maximum number of described faults; all are counted.

    Raises:
        KafkaWireError: names the record and the violated rule.
    """
    max_timestamp, max_index, missing_keys, bad_timestamps = NO_TIMESTAMP, -1, 0, 0
    min_timestamp = INT64_MAX
    faults: list[RecordFault] = []
    pos, end = 0, len(data)
    for index in range(count):
        length, pos = _varint(data, pos, end, index)
        if not 0 <= length <= end - pos:
            raise malformed(Rule.LENGTH, index, length, end - pos)
        timestamp, has_key = _walk_record(data, pos, pos + length, index, base_timestamp)
        pos += length
        if is_fixed_timestamp:
            timestamp = base_timestamp
        if timestamp > max_timestamp:
            max_timestamp, max_index = timestamp, index
        min_timestamp = min(min_timestamp, timestamp)
        lacks_key = keys_required and not has_key
        is_bad_time = timestamp != NO_TIMESTAMP and not timestamp_min <= timestamp <= timestamp_max
        if lacks_key:
            missing_keys += 1
        elif is_bad_time:
            bad_timestamps += 1
        if (lacks_key or is_bad_time) and len(faults) < faults_max:
            faults.append(RecordFault(index, lacks_key, timestamp))
    if pos != end:
        raise malformed(Rule.RECORDS_LEFT, count, 0, end - pos)
    return RecordWalk(max_timestamp, max_index, missing_keys, bad_timestamps, faults, min_timestamp)


def first_at_or_after(
    data: Buffer, count: int, base_timestamp: int, timestamp: int, offset_delta_min: int
) -> tuple[int, int] | None:
    """Find the first record with at least `timestamp` and `offset_delta_min`.

    Return its offset delta and timestamp.

    Raises:
        KafkaWireError: a record before it does not fit.
    """
    pos, end = 0, len(data)
    for index in range(count):
        delta, at, record_end = _timestamp_delta(data, pos, end, index)
        found = _wrap64(base_timestamp + delta)
        if found >= timestamp:
            offset_delta, _ = _varint(data, at, record_end, index)
            if offset_delta >= offset_delta_min:
                return offset_delta, found
        pos = record_end
    return None


def newest(data: Buffer, count: int, base_timestamp: int, offset_delta_min: int) -> tuple[int, int] | None:
    """Find the first of the records with the largest timestamp among those with at least `offset_delta_min`.

    Return its offset delta and timestamp.

    Raises:
        KafkaWireError: a record does not fit.
    """
    best: tuple[int, int] | None = None
    pos, end = 0, len(data)
    for index in range(count):
        delta, at, record_end = _timestamp_delta(data, pos, end, index)
        offset_delta, _ = _varint(data, at, record_end, index)
        timestamp = _wrap64(base_timestamp + delta)
        if offset_delta >= max(offset_delta_min, 0) and (best is None or timestamp > best[1]):
            best = offset_delta, timestamp
        pos = record_end
    return best


def _timestamp_delta(data: Buffer, pos: int, end: int, index: int) -> tuple[int, int, int]:
    """Return the timestamp delta of the record at `pos`, the position after it, and the end of the record."""
    length, pos = _varint(data, pos, end, index)
    if not 0 < length <= end - pos:
        raise malformed(Rule.LENGTH, index, length, end - pos)
    delta, at = _varlong(data, pos + 1, pos + length, index)
    return delta, at, pos + length


def _walk_record(data: Buffer, pos: int, end: int, index: int, base_timestamp: int) -> tuple[int, bool]:
    """Check one record; return its timestamp and whether it has a key."""
    if pos == end:
        raise malformed(Rule.NUMBER_ENDS, index, 0, 0)
    timestamp_delta, pos = _varlong(data, pos + 1, end, index)
    offset_delta, pos = _varint(data, pos, end, index)
    if offset_delta != index:
        raise malformed(Rule.OFFSET, index, offset_delta, 0)
    key_length, pos = _nullable(data, pos, end, index, Rule.KEY)
    _, pos = _nullable(data, pos, end, index, Rule.VALUE)
    headers, pos = _varint(data, pos, end, index)
    if not 0 <= headers <= end - pos:
        raise malformed(Rule.HEADER_COUNT, index, headers, end - pos)
    for _ in range(headers):
        header_length, pos = _nullable(data, pos, end, index, Rule.HEADER_KEY)
        if header_length < 0:
            raise malformed(Rule.HEADER_KEY, index, header_length, end - pos)
        _, pos = _nullable(data, pos, end, index, Rule.HEADER_VALUE)
    if pos != end:
        raise malformed(Rule.BODY_LEFT, index, 0, end - pos)
    return _wrap64(base_timestamp + timestamp_delta), key_length >= 0


def _nullable(data: Buffer, pos: int, end: int, index: int, rule: Rule) -> tuple[int, int]:
    """Return the length of a field (negative: null) and its end position."""
    length, pos = _varint(data, pos, end, index)
    if length < 0:
        return length, pos
    if length > end - pos:
        raise malformed(rule, index, length, end - pos)
    return length, pos + length


def _varint(data: Buffer, pos: int, end: int, index: int) -> tuple[int, int]:
    value, pos = _zigzag_bits(data, pos, end, index, _VARINT_BYTES_MAX)
    value &= 0xFFFF_FFFF
    return (value >> 1) ^ -(value & 1), pos


def _varlong(data: Buffer, pos: int, end: int, index: int) -> tuple[int, int]:
    value, pos = _zigzag_bits(data, pos, end, index, _VARLONG_BYTES_MAX)
    value &= 0xFFFF_FFFF_FFFF_FFFF
    return (value >> 1) ^ -(value & 1), pos


def _zigzag_bits(data: Buffer, pos: int, end: int, index: int, bytes_max: int) -> tuple[int, int]:
    value = 0
    for nth in range(bytes_max):
        if pos >= end:
            raise malformed(Rule.NUMBER_ENDS, index, 0, 0)
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << (7 * nth)
        if byte < 0x80:
            return value, pos
    raise malformed(Rule.NUMBER_TOO_LONG, index, 0, 0)


def _wrap64(value: int) -> int:
    return ((value + (1 << 63)) & 0xFFFF_FFFF_FFFF_FFFF) - (1 << 63)
