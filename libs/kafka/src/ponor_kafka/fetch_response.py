"""The fast path of Fetch responses, versions 4 to 18: small headers and the caller's own buffers, in one list.

Record data is never copied or joined: the list goes to the connection as it is. Equal, byte for byte, to what the
generic codec writes for the same content.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct as PackedRun
from typing import Final

from ponor_kafka.errors import ErrorCode, KafkaEncodeError
from ponor_kafka.message import ZERO_UUID
from ponor_kafka.primitives import Buffer, encode_compact_string_length, encode_unsigned_varint

VERSION_MIN: Final = 4
VERSION_MAX: Final = 18
LOG_START_MIN: Final = 5
SESSION_MIN: Final = 7
READ_REPLICA_MIN: Final = 11
FLEXIBLE_MIN: Final = 12
TOPIC_ID_MIN: Final = 13
NODE_ENDPOINTS_MIN: Final = 16

_INT16: Final = PackedRun(">h")
_INT32: Final = PackedRun(">i")
_TOP: Final = PackedRun(">ihi")
_PARTITION: Final = PackedRun(">ihqq")
_PARTITION_LOG_START: Final = PackedRun(">ihqqq")
_FLEXIBLE_PARTITION: Final = PackedRun(">ihqqqBi")
_ABORTED: Final = PackedRun(">qq")
_FLEXIBLE_ABORTED: Final = PackedRun(">qqx")
_EPOCH_AND_OFFSET: Final = PackedRun(">iqx")
_LEADER_AND_EPOCH: Final = PackedRun(">iix")

_DIVERGING_EPOCH_TAG: Final = b"\x00"
_CURRENT_LEADER_TAG: Final = b"\x01"


@dataclass(slots=True)
class FetchedPartition:
    """The answer for one partition. `records` are whole batches in offset order, in as many buffers as there are."""

    index: int
    error_code: ErrorCode | int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of every aborted transaction in range; None for read-uncommitted fetches."""
    preferred_read_replica: int = -1
    diverging_epoch: tuple[int, int] | None = None
    """(epoch, end offset) where the reader's log parts from this one; from version 12 on."""
    current_leader: tuple[int, int] | None = None
    """(leader id, leader epoch) beside an error that says another broker leads (KIP-951); from version 12 on."""
    records: Sequence[Buffer] = ()


@dataclass(slots=True)
class FetchedTopic:
    """The answers for one topic: by name up to version 12, by id from 13 on."""

    partitions: Sequence[FetchedPartition]
    name: str = ""
    topic_id: bytes = ZERO_UUID


@dataclass(slots=True)
class FetchNodeEndpoint:
    """Where a leader named in the answer can be reached; from version 16 on."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def build_fetch_response(
    version: int,
    topics: Sequence[FetchedTopic],
    *,
    throttle_time_ms: int = 0,
    error_code: ErrorCode | int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[FetchNodeEndpoint] = (),
) -> list[Buffer]:
    """The body of a Fetch response as buffers. Hints that `version` cannot carry are left out, errors are not.

    Raises KafkaEncodeError for a version outside 4 to 18.
    """
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise KafkaEncodeError(f"FetchResponse has no version {version}, only {VERSION_MIN} to {VERSION_MAX}")
    flexible = version >= FLEXIBLE_MIN
    out = _Buffers()
    if version >= SESSION_MIN:
        out.small += _TOP.pack(throttle_time_ms, error_code, session_id)
    else:
        out.small += _INT32.pack(throttle_time_ms)
    out.small += _count(len(topics), flexible=flexible)
    for topic in topics:
        if version >= TOPIC_ID_MIN:
            out.small += topic.topic_id
        else:
            out.small += _string(topic.name, flexible=flexible)
        out.small += _count(len(topic.partitions), flexible=flexible)
        for partition in topic.partitions:
            if flexible:
                _add_flexible_partition(out, partition)
            else:
                _add_partition(out, partition, version)
        if flexible:
            out.small.append(0)
    if flexible:
        out.small += (
            _endpoints_tag(node_endpoints) if version >= NODE_ENDPOINTS_MIN and node_endpoints else b"\x00"
        )
    return out.finish()


class _Buffers:
    """Gathers small pieces into one buffer until record data comes between."""

    __slots__ = ("_done", "small")

    def __init__(self) -> None:
        self._done: list[Buffer] = []
        self.small = bytearray()

    def add_records(self, records: Sequence[Buffer]) -> None:
        self._done.append(self.small)
        self._done.extend(records)
        self.small = bytearray()

    def finish(self) -> list[Buffer]:
        if self.small:
            self._done.append(self.small)
        return self._done


def _add_partition(out: _Buffers, partition: FetchedPartition, version: int) -> None:
    """One partition of a version without tagged fields."""
    fields = (partition.index, partition.error_code, partition.high_watermark, partition.last_stable_offset)
    if version >= LOG_START_MIN:
        out.small += _PARTITION_LOG_START.pack(*fields, partition.log_start_offset)
    else:
        out.small += _PARTITION.pack(*fields)
    aborted = partition.aborted_transactions
    out.small += _INT32.pack(-1 if aborted is None else len(aborted))
    for producer_id, first_offset in aborted or ():
        out.small += _ABORTED.pack(producer_id, first_offset)
    if version >= READ_REPLICA_MIN:
        out.small += _INT32.pack(partition.preferred_read_replica)
    size = sum(map(len, partition.records))
    out.small += _INT32.pack(size)
    if size:
        out.add_records(partition.records)


def _add_flexible_partition(out: _Buffers, partition: FetchedPartition) -> None:
    """One partition of a version with tagged fields; one pack when there is no aborted transaction."""
    aborted = partition.aborted_transactions
    count = 0 if aborted is None else len(aborted) + 1
    fields = (
        partition.index,
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
    )
    if count < 2:
        out.small += _FLEXIBLE_PARTITION.pack(*fields, count, partition.preferred_read_replica)
    else:
        out.small += _PARTITION_LOG_START.pack(*fields) + encode_unsigned_varint(count)
        for producer_id, first_offset in aborted or ():
            out.small += _FLEXIBLE_ABORTED.pack(producer_id, first_offset)
        out.small += _INT32.pack(partition.preferred_read_replica)
    size = sum(map(len, partition.records))
    out.small += encode_unsigned_varint(size + 1)
    if size:
        out.add_records(partition.records)
    if partition.diverging_epoch is None and partition.current_leader is None:
        out.small.append(0)
    else:
        out.small += _partition_tags(partition)


def _partition_tags(partition: FetchedPartition) -> bytes:
    diverging, leader = partition.diverging_epoch, partition.current_leader
    tags = []
    if diverging is not None:
        tags.append(
            _DIVERGING_EPOCH_TAG + bytes((_EPOCH_AND_OFFSET.size,)) + _EPOCH_AND_OFFSET.pack(*diverging)
        )
    if leader is not None:
        tags.append(_CURRENT_LEADER_TAG + bytes((_LEADER_AND_EPOCH.size,)) + _LEADER_AND_EPOCH.pack(*leader))
    return bytes((len(tags),)) + b"".join(tags)


def _endpoints_tag(endpoints: Sequence[FetchNodeEndpoint]) -> bytes:
    body = bytearray(encode_unsigned_varint(len(endpoints) + 1))
    for endpoint in endpoints:
        body += _INT32.pack(endpoint.node_id)
        body += _string(endpoint.host, flexible=True)
        body += _INT32.pack(endpoint.port)
        body += b"\x00" if endpoint.rack is None else _string(endpoint.rack, flexible=True)
        body.append(0)
    return b"\x01\x00" + encode_unsigned_varint(len(body)) + bytes(body)


def _count(count: int, *, flexible: bool) -> bytes:
    """A count, -1 meaning null."""
    return encode_unsigned_varint(count + 1) if flexible else _INT32.pack(count)


def _string(text: str, *, flexible: bool) -> bytes:
    raw = text.encode()
    return (encode_compact_string_length(len(raw) + 1) if flexible else _INT16.pack(len(raw))) + raw
