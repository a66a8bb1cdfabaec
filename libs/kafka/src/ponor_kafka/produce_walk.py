"""Fast path of Produce requests, versions 3 to 13: one pass over the bytes, no object per partition or
record.

It accepts exactly what the generic codec accepts, but returns a flat list. The whole request is read before
anything is returned, so that no part of a malformed request is applied.
"""

from dataclasses import dataclass, field
from struct import Struct as PackedRun
from struct import error as struct_error
from typing import Final, NamedTuple, TypeAlias

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.message import ZERO_UUID
from ponor_kafka.primitives import (
    COMPACT_STRING_BYTES_MAX,
    decode_unsigned_varint,
    decode_unsigned_varint_tail,
    skip_tagged_fields,
)

PARTITIONS_MAX: Final = 100_000
"""Maximum number of topics, and of partitions, in a request. A request of 100 MiB could name 17 million."""
VERSION_MIN: Final = 3
VERSION_MAX: Final = 13
FLEXIBLE_MIN: Final = 9
TOPIC_ID_MIN: Final = 13

_INT16: Final = PackedRun(">h")
_INT32: Final = PackedRun(">i")
_INT32_PAIR: Final = PackedRun(">ii")
_ACKS_TIMEOUT: Final = PackedRun(">hi")
_ACKS_TIMEOUT_COUNT: Final = PackedRun(">hii")
_INT32_LENGTH: Final = PackedRun(">iB")
_CLASSIC_UP_TO_NAME: Final = PackedRun(">hhiih")
"""Transactional id (null), acks, timeout, number of topics, length of the name."""
_CLASSIC_PARTITION: Final = PackedRun(">iii")
_FLEXIBLE_UP_TO_NAME: Final = PackedRun(">BhiBB")
_FLEXIBLE_UP_TO_ID: Final = PackedRun(">BhiB16s")
_FLEXIBLE_PARTITION: Final = PackedRun(">BiB")
"""Number of partitions, index, first byte of the records' length."""
_CLASSIC_TOPIC_BYTES_MIN: Final = 6
_CLASSIC_PARTITION_BYTES_MIN: Final = 8
_FLEXIBLE_TOPIC_BYTES_MIN: Final = 3
_FLEXIBLE_TOPIC_ID_BYTES_MIN: Final = 18
_FLEXIBLE_PARTITION_BYTES_MIN: Final = 6

Partition: TypeAlias = tuple[str, bytes, int, memoryview | None]
"""Topic name ("" from version 13), topic id (zero before), partition index, records (None if null)."""


@dataclass(slots=True)
class ProduceWalk:
    """A parsed Produce request; `partitions` keeps the request's order."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[Partition] = field(default_factory=list)


class OnePartition(NamedTuple):
    """A Produce request of the usual shape: no transaction, one topic, one partition, records."""

    acks: int
    timeout_ms: int
    topic: str | bytes
    """Name, or topic id from version 13."""
    partition: int
    records: memoryview


def walk_one_partition(version: int, frame: bytearray, pos: int) -> OnePartition | None:
    """Parse a request body of the usual shape in a third of the time of `walk_produce`.

    Return None for any other request, even if it is malformed.

    Small requests of idempotent producers and every request with a large batch have this shape. Bodies with
    null records, an empty topic, a name of 127 bytes or more, tagged fields or trailing bytes are left to
    `walk_produce`.
    """
    try:
        if version >= TOPIC_ID_MIN:
            found = _walk_one_by_id(frame, pos)
        elif version >= FLEXIBLE_MIN:
            found = _walk_one_flexible(frame, pos)
        else:
            found = _walk_one_classic(frame, pos)
    except (struct_error, IndexError, UnicodeDecodeError, KafkaWireError):
        return None
    return found


def _walk_one_classic(frame: bytearray, pos: int) -> OnePartition | None:
    transactional_id, acks, timeout_ms, topics, name_bytes = _CLASSIC_UP_TO_NAME.unpack_from(frame, pos)
    if transactional_id != -1 or topics != 1 or name_bytes <= 0:
        return None
    at = pos + _CLASSIC_UP_TO_NAME.size
    after_name = at + name_bytes
    partitions, index, size = _CLASSIC_PARTITION.unpack_from(frame, after_name)
    begin = after_name + _CLASSIC_PARTITION.size
    if partitions != 1 or size < 0 or begin + size != len(frame):
        return None
    return OnePartition(acks, timeout_ms, frame[at:after_name].decode(), index, memoryview(frame)[begin:])


def _walk_one_flexible(frame: bytearray, pos: int) -> OnePartition | None:
    transactional_id, acks, timeout_ms, topics, name_length = _FLEXIBLE_UP_TO_NAME.unpack_from(frame, pos)
    if transactional_id or topics != 2 or not 1 < name_length < 0x80:
        return None
    at = pos + _FLEXIBLE_UP_TO_NAME.size
    after_name = at + name_length - 1
    index, records = _one_flexible_partition(frame, after_name)
    return (
        None
        if records is None
        else OnePartition(acks, timeout_ms, frame[at:after_name].decode(), index, records)
    )


def _walk_one_by_id(frame: bytearray, pos: int) -> OnePartition | None:
    transactional_id, acks, timeout_ms, topics, topic_id = _FLEXIBLE_UP_TO_ID.unpack_from(frame, pos)
    if transactional_id or topics != 2:
        return None
    index, records = _one_flexible_partition(frame, pos + _FLEXIBLE_UP_TO_ID.size)
    return None if records is None else OnePartition(acks, timeout_ms, topic_id, index, records)


def _one_flexible_partition(frame: bytearray, pos: int) -> tuple[int, memoryview | None]:
    """Parse from the number of partitions to the end, which must be three empty tag buffers: partition,
    topic, request.
    """
    partitions, index, length = _FLEXIBLE_PARTITION.unpack_from(frame, pos)
    begin = pos + _FLEXIBLE_PARTITION.size
    if length > 0x7F:
        length, begin = decode_unsigned_varint_tail(frame, begin, length)
    end = begin + length - 1
    if partitions != 2 or length == 0 or end + 3 != len(frame) or not frame.endswith(b"\0\0\0"):
        return index, None
    return index, memoryview(frame)[begin:end]


def walk_produce(version: int, buf: memoryview, pos: int) -> tuple[ProduceWalk, int]:
    """Parse the request body at `pos`. Returns it and the end position; records are slices of `buf`.

    Raises KafkaWireError for malformed input and for a version outside 3 to 13.
    """
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise KafkaWireError(f"ProduceRequest has no version {version}, only {VERSION_MIN} to {VERSION_MAX}")
    try:
        if version < FLEXIBLE_MIN:
            return _walk_classic(buf, pos)
        return _walk_flexible(buf, pos, topic_ids=version >= TOPIC_ID_MIN)
    except (struct_error, IndexError) as error:
        raise KafkaWireError(
            f"ProduceRequest version {version}: ends early, after {len(buf)} bytes"
        ) from error
    except UnicodeDecodeError as error:
        raise KafkaWireError(
            f"ProduceRequest version {version}: a string is not UTF-8: {error.reason}"
        ) from error


def _walk_classic(buf: memoryview, pos: int) -> tuple[ProduceWalk, int]:
    end = len(buf)
    transactional_id, pos = _classic_string(buf, pos)
    acks, timeout_ms, topics = _ACKS_TIMEOUT_COUNT.unpack_from(buf, pos)
    pos += _ACKS_TIMEOUT_COUNT.size
    walk = ProduceWalk(transactional_id, acks, timeout_ms)
    for _ in range(_count(topics, _CLASSIC_TOPIC_BYTES_MIN, end - pos)):
        name, pos = _classic_string(buf, pos)
        if name is None:
            raise _null("name")
        (count,) = _INT32.unpack_from(buf, pos)
        pos += 4
        for _ in range(_count(count, _CLASSIC_PARTITION_BYTES_MIN, end - pos)):
            index, size = _INT32_PAIR.unpack_from(buf, pos)
            pos += 8
            if size < 0:
                walk.partitions.append((name, ZERO_UUID, index, None))
                continue
            if size > end - pos:
                raise _bad_length("records", size, end - pos)
            walk.partitions.append((name, ZERO_UUID, index, buf[pos : pos + size]))
            pos += size
        _check_partitions(walk)
    return walk, pos


def _walk_flexible(buf: memoryview, pos: int, *, topic_ids: bool) -> tuple[ProduceWalk, int]:
    transactional_id, pos = _compact_string(buf, pos)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(buf, pos)
    topics, pos = decode_unsigned_varint(buf, pos + _ACKS_TIMEOUT.size)
    walk = ProduceWalk(transactional_id, acks, timeout_ms)
    end = len(buf)
    bytes_min = _FLEXIBLE_TOPIC_ID_BYTES_MIN if topic_ids else _FLEXIBLE_TOPIC_BYTES_MIN
    name: str | None = ""
    topic_id = ZERO_UUID
    for _ in range(_count(topics - 1, bytes_min, end - pos)):
        if topic_ids:
            topic_id = bytes(buf[pos : pos + 16])
            pos += 16
        else:
            name, pos = _compact_string(buf, pos)
        if name is None:
            raise _null("name")
        pos = _flexible_partitions(buf, pos, walk.partitions, name, topic_id)
        _check_partitions(walk)
        pos = _tags(buf, pos, end)
    return walk, _tags(buf, pos, end)


def _flexible_partitions(
    buf: memoryview, pos: int, found: list[Partition], name: str, topic_id: bytes
) -> int:
    """Parse the partitions of one topic.

    This loop is a hot path, so its usual case makes no calls.
    """
    end = len(buf)
    unpack_from = _INT32_LENGTH.unpack_from
    count, pos = decode_unsigned_varint(buf, pos)
    for _ in range(_count(count - 1, _FLEXIBLE_PARTITION_BYTES_MIN, end - pos)):
        index, length = unpack_from(buf, pos)
        pos += 5
        if length > 127:
            length, pos = decode_unsigned_varint_tail(buf, pos, length)
        if length:
            stop = pos + length - 1
            if stop > end:
                raise _bad_length("records", length - 1, end - pos)
            found.append((name, topic_id, index, buf[pos:stop]))
            pos = stop
        else:
            found.append((name, topic_id, index, None))
        pos = pos + 1 if buf[pos] == 0 else skip_tagged_fields(buf, pos, end)
    return pos


def _tags(buf: memoryview, pos: int, end: int) -> int:
    return pos + 1 if buf[pos] == 0 else skip_tagged_fields(buf, pos, end)


def _classic_string(buf: memoryview, pos: int) -> tuple[str | None, int]:
    (size,) = _INT16.unpack_from(buf, pos)
    pos += 2
    return (None, pos) if size < 0 else _text(buf, pos, size)


def _compact_string(buf: memoryview, pos: int) -> tuple[str | None, int]:
    size, pos = decode_unsigned_varint(buf, pos)
    return (None, pos) if size == 0 else _text(buf, pos, size - 1)


def _text(buf: memoryview, pos: int, size: int) -> tuple[str, int]:
    if size > len(buf) - pos or size > COMPACT_STRING_BYTES_MAX:
        raise _bad_length("a string", size, len(buf) - pos)
    return str(buf[pos : pos + size], "utf-8"), pos + size


def _count(count: int, bytes_min: int, left: int) -> int:
    if count < 0:
        raise _null("an array")
    if count > PARTITIONS_MAX:
        raise _too_many(count)
    if count * bytes_min > left:
        raise KafkaWireError(f"an array claims {count} elements, more than the {left} bytes left can hold")
    return count


def _check_partitions(walk: ProduceWalk) -> None:
    if len(walk.partitions) > PARTITIONS_MAX:
        raise _too_many(len(walk.partitions))


def _too_many(count: int) -> KafkaWireError:
    return KafkaWireError(f"ProduceRequest: {count} topics or partitions; send at most {PARTITIONS_MAX}")


def _null(what: str) -> KafkaWireError:
    return KafkaWireError(f"ProduceRequest: {what} is null, which no version allows")


def _bad_length(what: str, size: int, left: int) -> KafkaWireError:
    return KafkaWireError(
        f"ProduceRequest: {what} claims {size} bytes, but only {left} are left, or its type allows fewer"
    )
