"""Construction of batches by the cleaner: a batch with fewer records, without records, or for a hole.

A batch keeps its base offset, last offset and sequence, so that offsets and producers' sequences
stay valid. Kept records are copied, except if a delete horizon replaces the base timestamp
(KIP-534): then their timestamp deltas are recomputed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct
from typing import Final

from crc32c import crc32c
from ponor_kafka.compression import compress
from ponor_kafka.primitives import append_varlong
from ponor_kafka.record_batch import (
    ATTRIBUTES_POSITION,
    BATCH_HEADER,
    CODEC_MASK,
    CRC_POSITION,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchView,
    wrapped_timestamp,
)
from ponor_kafka.record_builder import NO_EPOCH, NO_SEQUENCE
from ponor_runtime.turns import Steps

from ponor_broker.partitions.cleaning.record_scan import ScannedRecord, behind_timestamp

_CRC: Final = Struct(">I")


class KeptRecords:
    """The records of a batch that stay. A batch may have millions, so each takes 24 bytes."""

    __slots__ = ("_deltas", "_ends", "_starts")

    def __init__(self) -> None:
        self._starts, self._ends, self._deltas = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Iterate over start, end and timestamp delta."""
        return zip(self._starts, self._ends, self._deltas, strict=True)

    def add(self, record: ScannedRecord) -> None:
        """Add the next record."""
        self._starts.append(record.start)
        self._ends.append(record.end)
        self._deltas.append(record.timestamp_delta)


def with_records(
    batch: BatchView, data: bytes, kept: KeptRecords, horizon_ms: int | None
) -> Steps[BatchView]:
    """Return the batch with only `kept`, which is not empty; each record is one step.

    Args:
        batch: the original batch.
        data: its records, uncompressed.
        kept: the records to keep, in order.
        horizon_ms: the new delete horizon; None keeps the present one, if any.
    """
    assert kept, "no record is kept; call `without_records` for such a batch"
    attributes, base_timestamp = batch.attributes, batch.first_timestamp
    shift = 0
    if horizon_ms is not None:
        shift = base_timestamp - horizon_ms
        attributes, base_timestamp = attributes | DELETE_HORIZON_BIT, horizon_ms
    body = bytearray()
    max_timestamp = NO_TIMESTAMP
    for start, end, delta in kept:
        max_timestamp = max(max_timestamp, wrapped_timestamp(batch.first_timestamp + delta))
        if horizon_ms is None:
            body += data[start:end]
        else:
            _append_shifted(body, data, start, end, wrapped_timestamp(delta + shift))
        yield
    if batch.is_log_append_time:
        max_timestamp = batch.max_timestamp
    return _build(batch, compress(batch.codec, body), attributes, base_timestamp, max_timestamp, len(kept))


def without_records(batch: BatchView) -> BatchView:
    """Return the batch's header only: for the newest batch of a producer."""
    attributes = batch.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    return _build(batch, b"", attributes, NO_TIMESTAMP, batch.max_timestamp, 0)


def padding(base_offset: int, count: int, leader_epoch: int) -> BatchView:
    """Return an empty batch for offsets whose records were all removed."""
    header = BATCH_HEADER.pack(
        base_offset,
        HEADER_BYTES - LENGTH_PREFIX_BYTES,
        leader_epoch,
        MAGIC,
        0,
        0,
        count - 1,
        NO_TIMESTAMP,
        NO_TIMESTAMP,
        NO_PRODUCER_ID,
        NO_EPOCH,
        NO_SEQUENCE,
        0,
    )
    return _checked(bytearray(header))


def _append_shifted(body: bytearray, data: bytes, start: int, end: int, timestamp_delta: int) -> None:
    """Append a record with another timestamp delta."""
    record = bytearray(1)
    append_varlong(record, timestamp_delta)
    record += data[behind_timestamp(data, start, end) : end]
    append_varlong(body, len(record))
    body += record


def _build(
    batch: BatchView, body: bytes, attributes: int, base_timestamp: int, max_timestamp: int, count: int
) -> BatchView:
    out = bytearray(
        BATCH_HEADER.pack(
            batch.base_offset,
            HEADER_BYTES - LENGTH_PREFIX_BYTES + len(body),
            batch.leader_epoch,
            MAGIC,
            0,
            attributes,
            batch.last_offset_delta,
            base_timestamp,
            max_timestamp,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            count,
        )
    )
    out += body
    return _checked(out)


def _checked(out: bytearray) -> BatchView:
    view = memoryview(out)
    _CRC.pack_into(out, CRC_POSITION, crc32c(view[ATTRIBUTES_POSITION:]))
    return BatchView(view)
