"""Stored batches of every kind, their blocks, and the rows that a Kafka consumer reads from them.

The expected rows come from a second reader, `ponor_kafka`'s own, which reads batch by batch and uses the
offsets in the batches' headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from crc32c import crc32c
from ponor_kafka.compression import Codec, compress
from ponor_kafka.record_batch import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    CONTROL_BIT,
    CRC_POSITION,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchView,
)
from ponor_kafka.record_builder import CRC_END
from ponor_kafka.records import append_record
from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_spark.clip import AbortedRange, Clip
from s3stream.records import StreamRecord

MS: Final = 1_700_000_000_000
STREAM: Final = StreamId(7)
DECOMPRESSED_BYTES_MAX: Final = 1 << 20


class Kept(NamedTuple):
    """A record in a batch; compaction leaves gaps between the deltas."""

    delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """Everything about a batch except its records and position."""

    codec: Codec = Codec.NONE
    append_time: int | None = None
    producer_id: int = -1
    transactional: bool = False
    control: bool = False
    delete_horizon: int | None = None


@dataclass(slots=True)
class Log:
    """The batches of a partition from `start_offset` on, and their stream records."""

    start_offset: int = 0
    shift: int = 0
    batches: list[bytes] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    end_offset: int = field(init=False)
    covered: int = field(init=False)
    """Return the end of the last stream record."""

    def __post_init__(self) -> None:
        self.end_offset = self.covered = self.start_offset

    def add(self, records: Sequence[Kept], kind: Kind = Kind(), *, span: int = 1) -> None:
        """Append a batch of `span` offsets, by default as many as its records need."""
        self.batches.append(stored_batch(records, kind, base_offset=self.end_offset, span=span))
        self.end_offset = BatchView(memoryview(self.batches[-1])).next_offset
        self.counts.append(self.end_offset - self.covered)
        self.covered = self.end_offset

    def drop(self, span: int) -> None:
        """Drop a batch as compaction does: the next record covers its offsets."""
        self.end_offset += span

    def block(self) -> bytes:
        """Return everything as one data block."""
        return data_block(self.batches, self.counts, self.start_offset - self.shift)


def stored_batch(
    records: Iterable[Kept],
    kind: Kind = Kind(),
    *,
    base_offset: int = 0,
    span: int = 1,
    patch: Callable[[bytearray], bytearray] = lambda body: body,
) -> bytes:
    """Build a batch as a broker stores it; `patch` damages the records before compression and checksum."""
    records = list(records)
    span = max([span, *(record.delta + 1 for record in records)])
    base = records[0].timestamp if records else -1
    if kind.delete_horizon is not None:
        base = kind.delete_horizon
    body = bytearray()
    for delta, timestamp, key, value, headers in records:
        append_record(
            body, timestamp_delta=timestamp - base, offset_delta=delta, key=key, value=value, headers=headers
        )
    packed = compress(kind.codec, patch(body)) if records else b""
    newest = max((record.timestamp for record in records), default=-1)
    if kind.append_time is not None:
        newest = kind.append_time
    attributes = (
        int(kind.codec)
        | TIMESTAMP_TYPE_BIT * (kind.append_time is not None)
        | TRANSACTIONAL_BIT * kind.transactional
        | CONTROL_BIT * kind.control
        | DELETE_HORIZON_BIT * (kind.delete_horizon is not None)
    )
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(packed)
    header = BATCH_HEADER.pack(
        base_offset,
        length,
        3,
        MAGIC,
        0,
        attributes,
        span - 1,
        base,
        newest,
        kind.producer_id,
        0,
        0,
        len(records),
    )
    return with_checksum(bytearray(header) + packed)


def with_checksum(batch: bytearray) -> bytes:
    """Return the batch with the checksum of its current bytes."""
    batch[CRC_POSITION:CRC_END] = crc32c(memoryview(batch)[ATTRIBUTES_POSITION:]).to_bytes(4, "big")
    return bytes(batch)


def data_block(batches: Sequence[bytes], counts: Sequence[int], stream_offset: int) -> bytes:
    """Return the records of a stream from an offset on, as stored in an object."""
    block = bytearray()
    for batch, count in zip(batches, counts, strict=True):
        record = StreamRecord(STREAM, StreamEpoch(1), stream_offset, count, MS, batch)
        block += record.encode_header() + batch
        stream_offset += count
    return bytes(block)


def consumed(
    batches: Iterable[bytes], clip: Clip, aborted: Sequence[AbortedRange] = ()
) -> list[dict[str, Any]]:
    """Return the rows of a consumer with isolation.level=read_committed from the clip's start to its end."""
    rows = []
    for stored in batches:
        batch = BatchView(memoryview(stored))
        if (
            batch.record_count == 0
            or batch.is_control
            or (batch.is_transactional and _is_aborted(batch, aborted))
        ):
            continue
        for record in batch.records(DECOMPRESSED_BYTES_MAX):
            if clip.start_offset <= record.offset < clip.end_offset:
                headers = [{"key": key, "value": value} for key, value in record.headers]
                rows.append(
                    {
                        "key": record.key,
                        "value": record.value,
                        "topic": clip.topic,
                        "partition": clip.partition,
                        "offset": record.offset,
                        "timestamp": 1000 * record.timestamp,
                        "timestampType": int(batch.is_log_append_time),
                        "headers": headers or None,
                    }
                )
    return rows


def _is_aborted(batch: BatchView, aborted: Sequence[AbortedRange]) -> bool:
    return any(
        t.producer_id == batch.producer_id and t.first_offset <= batch.base_offset <= t.last_offset
        for t in aborted
    )
