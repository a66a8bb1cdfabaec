"""Fast path of Fetch requests, versions 4 to 18: one pass over the bytes and one tuple per partition, no
objects.

It accepts what the generic codec accepts, with one exception: the contents of tagged fields (cluster id,
replica state, replica directory, high watermark) concern followers, which Ponor does not have, and are
skipped by size. The whole request is read before anything is returned, so that no part of a malformed request
is applied to a fetch session.
"""

from dataclasses import dataclass, field
from struct import Struct as PackedRun
from struct import error as struct_error
from typing import Final, TypeAlias

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import (
    COMPACT_STRING_BYTES_MAX,
    Buffer,
    decode_unsigned_varint,
    skip_tagged_fields,
)

VERSION_MIN: Final = 4
VERSION_MAX: Final = 18
LOG_START_MIN: Final = 5
SESSION_MIN: Final = 7
LEADER_EPOCH_MIN: Final = 9
RACK_MIN: Final = 11
FLEXIBLE_MIN: Final = 12
TOPIC_ID_MIN: Final = 13
REPLICA_STATE_MIN: Final = 15

FINAL_EPOCH: Final = -1
"""Session epoch of a request without a session, including every request before version 7."""

_INT16: Final = PackedRun(">h")
_INT32: Final = PackedRun(">i")
_HEAD: Final = PackedRun(">iiib")
_HEAD_SESSION: Final = PackedRun(">iiibii")
_PARTITION_4: Final = PackedRun(">iqi")
_PARTITION_5: Final = PackedRun(">iqqi")
_PARTITION_9: Final = PackedRun(">iiqqi")
_PARTITION_12: Final = PackedRun(">iiqiqi")
_PARTITION_12_NO_TAGS: Final = PackedRun(">iiqiqiB")
_REPLICA_ID_BYTES: Final = 4
_TOPIC_ID_BYTES: Final = 16

_ONE_BYTE_END: Final = 0x80
"""Lengths below this take one byte as unsigned varint."""
_ONE_ELEMENT: Final = 2
_USUAL_END: Final = b"\x00\x01\x01\x00"
"""Last bytes of the usual request: no topic tags, no forgotten topics, an empty rack, no tags."""

WantedPartition: TypeAlias = tuple[int, int, int, int, int]
"""Index, client's leader epoch (−1: none), fetch offset, epoch of the preceding record (−1: unknown), maximum
bytes."""

TopicKey: TypeAlias = str | bytes
"""A topic's name up to version 12, its id from version 13."""


@dataclass(slots=True)
class FetchWalk:
    """A parsed Fetch request in request order. Before version 7 the session epoch is `FINAL_EPOCH`."""

    max_wait_ms: int
    min_bytes: int
    bytes_max: int
    isolation_level: int
    session_id: int = 0
    session_epoch: int = FINAL_EPOCH
    topics: list[tuple[TopicKey, list[WantedPartition]]] = field(default_factory=list)
    forgotten: list[tuple[TopicKey, list[int]]] = field(default_factory=list)


def walk_fetch(version: int, buf: Buffer, pos: int, *, partitions_max: int) -> tuple[FetchWalk, int]:
    """Parse the request body at `pos`. Returns it and the end position.

    Raises KafkaWireError for malformed input, for more than `partitions_max` partitions, and for a version
    outside 4 to 18.
    """
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise KafkaWireError(f"FetchRequest has no version {version}, only {VERSION_MIN} to {VERSION_MAX}")
    try:
        if version >= FLEXIBLE_MIN:
            found = _walk_usual(version, buf, pos, partitions_max)
            if found is not None:
                return found
        return _Walk(version, buf, partitions_max).run(pos)
    except (struct_error, IndexError) as error:
        raise KafkaWireError(f"FetchRequest version {version}: ends early, after {len(buf)} bytes") from error
    except UnicodeDecodeError as error:
        raise KafkaWireError(
            f"FetchRequest version {version}: a string is not UTF-8: {error.reason}"
        ) from error


def _walk_usual(version: int, buf: Buffer, pos: int, partitions_max: int) -> tuple[FetchWalk, int] | None:
    """Parse the usual request: one topic, no tags, no forgotten topics, no rack.

    Return None for any other request, even if it is malformed.
    """
    if version < REPLICA_STATE_MIN:
        pos += _REPLICA_ID_BYTES
    wait_ms, min_bytes, bytes_max, isolation, session_id, session_epoch = _HEAD_SESSION.unpack_from(buf, pos)
    pos += _HEAD_SESSION.size
    if buf[pos] != _ONE_ELEMENT:
        return None
    pos += 1
    name_size = _TOPIC_ID_BYTES if version >= TOPIC_ID_MIN else buf[pos] - 1
    if version < TOPIC_ID_MIN:
        pos += 1
    if not 0 <= name_size < _ONE_BYTE_END - 1:
        return None
    name = bytes(buf[pos : pos + name_size])
    pos += name_size
    count = buf[pos] - 1
    pos += 1
    end = pos + count * _PARTITION_12_NO_TAGS.size
    if not 0 <= count < min(_ONE_BYTE_END - 1, partitions_max + 1) or buf[end : end + 4] != _USUAL_END:
        return None
    rows: list[WantedPartition] = []
    for at in range(pos, end, _PARTITION_12_NO_TAGS.size):
        index, leader, offset, last, _, size, tags = _PARTITION_12_NO_TAGS.unpack_from(buf, at)
        if tags:
            return None
        rows.append((index, leader, offset, last, size))
    topic: TopicKey = name if version >= TOPIC_ID_MIN else name.decode()
    walk = FetchWalk(wait_ms, min_bytes, bytes_max, isolation, session_id, session_epoch, [(topic, rows)], [])
    return walk, end + len(_USUAL_END)


class _Walk:
    """Parser of one request, with a count of the remaining partitions."""

    __slots__ = ("_buf", "_end", "_flexible", "_left", "_max", "_version")

    def __init__(self, version: int, buf: Buffer, partitions_max: int) -> None:
        self._version = version
        self._buf = buf
        self._end = len(buf)
        self._flexible = version >= FLEXIBLE_MIN
        self._max = partitions_max
        self._left = partitions_max

    def run(self, pos: int) -> tuple[FetchWalk, int]:
        version = self._version
        if version < REPLICA_STATE_MIN:
            pos += _REPLICA_ID_BYTES
        head = _HEAD_SESSION if version >= SESSION_MIN else _HEAD
        walk = FetchWalk(*head.unpack_from(self._buf, pos))
        pos += head.size
        count, pos = self._count(pos)
        for _ in range(count):
            topic, pos = self._topic(pos)
            rows, pos = self._flexible_rows(pos) if self._flexible else self._classic_rows(pos)
            walk.topics.append((topic, rows))
        if version >= SESSION_MIN:
            count, pos = self._count(pos)
            for _ in range(count):
                topic, pos = self._topic(pos)
                indexes, pos = self._indexes(pos)
                walk.forgotten.append((topic, indexes))
        if version >= RACK_MIN:
            _, pos = self._string(pos)
        if self._flexible:
            pos = skip_tagged_fields(self._buf, pos, self._end)
        return walk, pos

    def _topic(self, pos: int) -> tuple[TopicKey, int]:
        if self._version < TOPIC_ID_MIN:
            return self._string(pos)
        end = pos + _TOPIC_ID_BYTES
        if end > self._end:
            raise _bad_length("a topic id", _TOPIC_ID_BYTES, self._end - pos)
        return bytes(self._buf[pos:end]), end

    def _flexible_rows(self, pos: int) -> tuple[list[WantedPartition], int]:
        """Parse the partitions of one topic.

        Usually no row has a tag. All rows then have the same size, and one call unpacks them.
        """
        buf = self._buf
        count, pos = self._count(pos)
        self._take(count, _PARTITION_12_NO_TAGS.size, pos)
        end = pos + count * _PARTITION_12_NO_TAGS.size
        rows: list[WantedPartition] = []
        area = memoryview(buf)[pos:end]
        for index, leader, offset, last, _, size, tags in _PARTITION_12_NO_TAGS.iter_unpack(area):
            if tags:
                break
            rows.append((index, leader, offset, last, size))
        pos += len(rows) * _PARTITION_12_NO_TAGS.size
        for _ in range(count - len(rows)):
            index, leader, offset, last, _, size = _PARTITION_12.unpack_from(buf, pos)
            rows.append((index, leader, offset, last, size))
            pos = skip_tagged_fields(buf, pos + _PARTITION_12.size, self._end)
        return rows, self._tags(pos)

    def _classic_rows(self, pos: int) -> tuple[list[WantedPartition], int]:
        version = self._version
        row = (
            _PARTITION_9
            if version >= LEADER_EPOCH_MIN
            else _PARTITION_5
            if version >= LOG_START_MIN
            else _PARTITION_4
        )
        count, pos = self._count(pos)
        self._take(count, row.size, pos)
        end = pos + count * row.size
        found = row.iter_unpack(memoryview(self._buf)[pos:end])
        if version >= LEADER_EPOCH_MIN:
            return [(index, leader, offset, -1, size) for index, leader, offset, _, size in found], end
        return [(fields[0], -1, fields[1], -1, fields[-1]) for fields in found], end

    def _indexes(self, pos: int) -> tuple[list[int], int]:
        count, pos = self._count(pos)
        self._take(count, _INT32.size, pos)
        indexes = [_INT32.unpack_from(self._buf, pos + at * 4)[0] for at in range(count)]
        return indexes, self._tags(pos + count * 4)

    def _count(self, pos: int) -> tuple[int, int]:
        """Read an array's length.

        Every element takes at least one byte, so a count above the remaining bytes is invalid.
        """
        if self._flexible:
            count, pos = decode_unsigned_varint(self._buf, pos)
            count -= 1
        else:
            (count,) = _INT32.unpack_from(self._buf, pos)
            pos += 4
        if count < 0:
            raise KafkaWireError("FetchRequest: an array is null, which no version allows")
        if count > self._end - pos:
            raise _too_many(count, self._end - pos)
        return count, pos

    def _take(self, count: int, bytes_each: int, pos: int) -> None:
        if count * bytes_each > self._end - pos:
            raise _too_many(count, self._end - pos)
        self._left -= count
        if self._left < 0:
            raise KafkaWireError(
                f"FetchRequest: more than {self._max} partitions; request fewer or raise fetch_partitions_max"
            )

    def _string(self, pos: int) -> tuple[str, int]:
        if self._flexible:
            size, pos = decode_unsigned_varint(self._buf, pos)
            size -= 1
        else:
            (size,) = _INT16.unpack_from(self._buf, pos)
            pos += 2
        if size < 0:
            raise KafkaWireError("FetchRequest: a string is null, which no version allows")
        if size > self._end - pos or size > COMPACT_STRING_BYTES_MAX:
            raise _bad_length("a string", size, self._end - pos)
        return str(self._buf[pos : pos + size], "utf-8"), pos + size

    def _tags(self, pos: int) -> int:
        if not self._flexible:
            return pos
        return pos + 1 if self._buf[pos] == 0 else skip_tagged_fields(self._buf, pos, self._end)


def _too_many(count: int, left: int) -> KafkaWireError:
    return KafkaWireError(f"an array claims {count} elements, more than the {left} bytes left can hold")


def _bad_length(what: str, size: int, left: int) -> KafkaWireError:
    return KafkaWireError(
        f"FetchRequest: {what} claims {size} bytes, but only {left} are left, or its type allows fewer"
    )
