"""Fast path of Fetch responses, versions 4 to 18: small headers and the caller's record buffers in one list.

Record data is never copied or joined. The output is byte for byte that of the generic codec.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from struct import Struct as PackedRun
from typing import Final

from ponor_kafka.errors import ErrorCode, KafkaEncodeError
from ponor_kafka.fetch_walk import TopicKey
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

_topic = attrgetter("topic")

_ONE_ELEMENT: Final = b"\x02"
_NO_TAGS_OF_PARTITION_TOPIC_ANSWER: Final = bytes(3)

_DIVERGING_EPOCH_TAG: Final = b"\x00"
_CURRENT_LEADER_TAG: Final = b"\x01"


class FetchedPartition:
    """The response for one partition.

    A mutable class, so that a broker's state of a partition can be a subclass and serve as the response.

    Set `records` and `records_bytes` with `take`. `records` are whole batches in offset order, in any number
    of buffers. `aborted_transactions` are (producer id, first offset) of every aborted transaction in range,
    None for read-uncommitted fetches. `diverging_epoch` is (epoch, end offset) where the reader's log
    diverges from this one. `current_leader` is (leader id, leader epoch), sent with an error if another
    broker leads (KIP-951). `diverging_epoch` and `current_leader` exist from version 12.
    """

    __slots__ = (
        "aborted_transactions",
        "current_leader",
        "diverging_epoch",
        "error_code",
        "high_watermark",
        "index",
        "last_stable_offset",
        "log_start_offset",
        "preferred_read_replica",
        "records",
        "records_bytes",
        "topic",
    )

    def __init__(self, topic: TopicKey, index: int) -> None:
        self.topic = topic
        self.index = index
        self.error_code = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.aborted_transactions: Sequence[tuple[int, int]] | None = None
        self.preferred_read_replica = -1
        self.diverging_epoch: tuple[int, int] | None = None
        self.current_leader: tuple[int, int] | None = None
        self.records: Sequence[Buffer] = ()
        self.records_bytes = 0

    @property
    def is_plain(self) -> bool:
        """Whether the response has records and none of the rare fields, as nearly all responses do."""
        return bool(
            self.records_bytes
            and not self.aborted_transactions
            and self.diverging_epoch is None
            and self.current_leader is None
        )

    def take(self, records: Sequence[Buffer]) -> None:
        """Set the batches of the response."""
        self.records = records
        self.records_bytes = sum(map(len, records))


@dataclass(slots=True)
class FetchNodeEndpoint:
    """Address of a leader named in the response; from version 16."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def build_fetch_response(
    version: int,
    partitions: Sequence[FetchedPartition],
    *,
    throttle_time_ms: int = 0,
    error_code: ErrorCode | int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[FetchNodeEndpoint] = (),
) -> list[Buffer]:
    """Build the body of a Fetch response as buffers.

    Fields that are only hints are omitted if `version` lacks them; error codes are never omitted.

    Consecutive partitions of one topic share an entry; a topic that recurs later gets another entry, as in
    Kafka.

    Raises KafkaEncodeError for a version outside 4 to 18.
    """
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise KafkaEncodeError(f"FetchResponse has no version {version}, only {VERSION_MIN} to {VERSION_MAX}")
    flexible = version >= FLEXIBLE_MIN
    if flexible and len(partitions) == 1 and not node_endpoints and partitions[0].is_plain:
        return _plain_response(version, partitions[0], throttle_time_ms, error_code, session_id)
    out = _Buffers()
    if version >= SESSION_MIN:
        out.small += _TOP.pack(throttle_time_ms, error_code, session_id)
    else:
        out.small += _INT32.pack(throttle_time_ms)
    topics = _by_topic(partitions)
    out.small += _count(len(topics), flexible=flexible)
    for topic in topics:
        key = topic[0].topic
        if version >= TOPIC_ID_MIN:
            assert isinstance(key, bytes), f"version {version} names topics by id, not {key!r}"
            out.small += key
        else:
            assert isinstance(key, str), f"version {version} names topics by name, not {key!r}"
            out.small += _string(key, flexible=flexible)
        out.small += _count(len(topic), flexible=flexible)
        if flexible:
            for partition in topic:
                _add_flexible_partition(out, partition)
            out.small.append(0)
        else:
            for partition in topic:
                _add_partition(out, partition, version)
    if flexible:
        out.small += (
            _endpoints_tag(node_endpoints) if version >= NODE_ENDPOINTS_MIN and node_endpoints else b"\x00"
        )
    return out.finish()


def _plain_response(
    version: int, partition: FetchedPartition, throttle_time_ms: int, error_code: int, session_id: int
) -> list[Buffer]:
    """Build the most frequent response, one `is_plain` partition, with a single header buffer."""
    topic = partition.topic
    if version >= TOPIC_ID_MIN:
        assert isinstance(topic, bytes), f"version {version} names topics by id, not {topic!r}"
    else:
        assert isinstance(topic, str), f"version {version} names topics by name, not {topic!r}"
        topic = _string(topic, flexible=True)
    head = b"".join(
        (
            _TOP.pack(throttle_time_ms, error_code, session_id),
            _ONE_ELEMENT,
            topic,
            _ONE_ELEMENT,
            _FLEXIBLE_PARTITION.pack(
                partition.index,
                partition.error_code,
                partition.high_watermark,
                partition.last_stable_offset,
                partition.log_start_offset,
                0 if partition.aborted_transactions is None else 1,
                partition.preferred_read_replica,
            ),
            encode_unsigned_varint(partition.records_bytes + 1),
        )
    )
    return [head, *partition.records, _NO_TAGS_OF_PARTITION_TOPIC_ANSWER]


def _by_topic(partitions: Sequence[FetchedPartition]) -> list[Sequence[FetchedPartition]]:
    """Group consecutive partitions by topic."""
    if len(partitions) == 1:
        return [partitions]
    return [list(run) for _, run in groupby(partitions, _topic)]


class _Buffers:
    """Collects small parts in one buffer between record data."""

    __slots__ = ("_done", "small")

    def __init__(self) -> None:
        self._done: list[Buffer] = []
        self.small = bytearray()

    def add_records(self, records: Sequence[Buffer]) -> None:
        self._done.append(self.small)
        self._done += records
        self.small = bytearray()

    def finish(self) -> list[Buffer]:
        if self.small:
            self._done.append(self.small)
        return self._done


def _add_partition(out: _Buffers, partition: FetchedPartition, version: int) -> None:
    """Encode a partition for a version without tagged fields."""
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
    size = partition.records_bytes
    out.small += _INT32.pack(size)
    if size:
        out.add_records(partition.records)


def _add_flexible_partition(out: _Buffers, partition: FetchedPartition) -> None:
    """Encode a partition for a version with tagged fields, in one pack call if it has no aborted
    transactions.
    """
    aborted = partition.aborted_transactions
    if not aborted:
        out.small += _FLEXIBLE_PARTITION.pack(
            partition.index,
            partition.error_code,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
            0 if aborted is None else 1,
            partition.preferred_read_replica,
        )
    else:
        _add_aborted(out, partition, aborted)
    size = partition.records_bytes
    out.small += encode_unsigned_varint(size + 1)
    if size:
        out.add_records(partition.records)
    if partition.diverging_epoch is None and partition.current_leader is None:
        out.small.append(0)
    else:
        out.small += _partition_tags(partition)


def _add_aborted(out: _Buffers, partition: FetchedPartition, aborted: Sequence[tuple[int, int]]) -> None:
    """Encode the fields before the records of a partition with aborted transactions."""
    out.small += _PARTITION_LOG_START.pack(
        partition.index,
        partition.error_code,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
    )
    out.small += encode_unsigned_varint(len(aborted) + 1)
    for producer_id, first_offset in aborted:
        out.small += _FLEXIBLE_ABORTED.pack(producer_id, first_offset)
    out.small += _INT32.pack(partition.preferred_read_replica)


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
    """Encode a count; -1 means null."""
    return encode_unsigned_varint(count + 1) if flexible else _INT32.pack(count)


def _string(text: str, *, flexible: bool) -> bytes:
    raw = text.encode()
    return (encode_compact_string_length(len(raw) + 1) if flexible else _INT16.pack(len(raw))) + raw
