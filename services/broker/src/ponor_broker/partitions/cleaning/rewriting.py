"""Construction of batches by the cleaner: a batch with fewer records, without records, or for a hole.

A batch keeps its base offset, last offset and sequence, so that offsets and producers' sequences
stay valid. Kept records are copied, except if a delete horizon replaces the base timestamp
(KIP-534): then their timestamp deltas are recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
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

from ponor_broker.partitions.cleaning.record_scan import ScannedRecord, behind_timestamp

_CRC: Final = Struct(">I")


def with_records(
    batch: BatchView, data: bytes, kept: Sequence[ScannedRecord], horizon_ms: int | None
) -> BatchView:
    """Return the batch with only some of its records, at least one.

    Args:
        batch: the original batch.
        data: its records, uncompressed.
        kept: the records to keep, in order.
        horizon_ms: the new delete horizon; None keeps the present one, if any.
    """
    assert kept, "a batch without records is `without_records`"
    attributes, base_timestamp = batch.attributes, batch.first_timestamp
    if horizon_ms is None:
        body = bytearray().join([data[record.start : record.end] for record in kept])
    else:
        body = _counted_from(horizon_ms, batch, data, kept)
        attributes, base_timestamp = attributes | DELETE_HORIZON_BIT, horizon_ms
    max_timestamp = batch.max_timestamp
    if not batch.is_log_append_time:
        first_timestamp = batch.first_timestamp
        max_timestamp = max(wrapped_timestamp(first_timestamp + record.timestamp_delta) for record in kept)
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


def _counted_from(horizon_ms: int, batch: BatchView, data: bytes, kept: Sequence[ScannedRecord]) -> bytearray:
    """Return the records with timestamp deltas relative to the horizon."""
    shift = batch.first_timestamp - horizon_ms
    out = bytearray()
    for record in kept:
        body = bytearray(1)
        append_varlong(body, wrapped_timestamp(record.timestamp_delta + shift))
        body += data[behind_timestamp(data, record) : record.end]
        append_varlong(out, len(body))
        out += body
    return out


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
