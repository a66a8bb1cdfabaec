"""Stream records, which the WAL, the log cache and objects store as the same bytes.

The encoded form is a 40-byte header, big-endian, followed by the payload (docs/formats/object.md, "Stream
record"). It contains no checksum: the journal frame or data block that stores records covers them with its
own checksum. The payload is opaque to this package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ponor_runtime.disk import Buffer
from ponor_runtime.identity import StreamEpoch, StreamId

from s3stream.errors import ObjectCorruptError

RECORD_HEADER: Final = struct.Struct(">qqqqII")
"""stream id, stream epoch, base offset, max timestamp (signed 64 bits each), count, payload length (unsigned
32 bits each).
"""

RECORD_HEADER_BYTES: Final = RECORD_HEADER.size
RECORD_COUNT_MAX: Final = (1 << 31) - 1
"""Offsets that one record may span: the range of a Kafka batch's 32-bit offset delta."""
OFFSET_MAX: Final = (1 << 63) - 1
TIMESTAMP_MIN: Final = -(1 << 63)
"""Lower bound for unknown timestamps."""

assert RECORD_HEADER_BYTES == 40

PINNED_TIMES_MAX: Final = 4
PINNED_SLACK_BYTES: Final = 1_024


def unpinned(payload: Buffer) -> Buffer:
    """Return the payload, or a copy if it is a small view of a large buffer.

    A stored view keeps the whole receive buffer in memory, but only the record is charged. Without the copy,
    a small batch could keep a request of 100 MiB. A buffer may be up to four times as large as the record.
    """
    if isinstance(payload, memoryview):
        buffer = payload.obj
        if (
            isinstance(buffer, bytes | bytearray)
            and len(buffer) > PINNED_TIMES_MAX * len(payload) + PINNED_SLACK_BYTES
        ):
            return bytes(payload)
    return payload


@dataclass(slots=True)
class StreamRecord:
    """A batch of one stream: offsets [base_offset, base_offset + count) and an opaque payload.

    `count` may exceed the number of records in the payload (offset padding of compacted topics).
    `max_timestamp` is in milliseconds since 1970, −1 if there is none. No timestamp in the payload is below
    `min_timestamp`. `min_timestamp` is not encoded in the record, so it is unknown after decoding, but it is
    written to the index of the object (docs/design/reading-and-caches.md#block-timestamps).
    """

    stream_id: StreamId
    epoch: StreamEpoch
    base_offset: int
    count: int
    max_timestamp: int
    payload: Buffer
    min_timestamp: int = field(default=TIMESTAMP_MIN, compare=False)

    @property
    def end_offset(self) -> int:
        """One past the last offset."""
        return self.base_offset + self.count

    @property
    def size_bytes(self) -> int:
        """Length of the encoded record, including the header."""
        return RECORD_HEADER_BYTES + len(self.payload)

    def encode_header(self) -> bytes:
        """Encode the 40-byte header.

        Raises:
            struct.error: a value does not fit into its field.
        """
        return RECORD_HEADER.pack(
            self.stream_id, self.epoch, self.base_offset, self.max_timestamp, self.count, len(self.payload)
        )


def decode_records(buffer: Buffer, *, source: str = "buffer", position: int = 0) -> Iterator[StreamRecord]:
    """Decode records until the buffer ends; payloads are views into it.

    Args:
        buffer: contains only records.
        source: name of the buffer in errors (an object's key, a WAL segment).
        position: position of the buffer in `source`, for errors.

    Raises:
        ObjectCorruptError: while iterating; names source, position and the broken rule.
    """
    view = memoryview(buffer)
    length = len(view)
    at = 0
    while at < length:
        if length - at < RECORD_HEADER_BYTES:
            raise ObjectCorruptError(
                f"{source}, position {position + at}: record header: {length - at} bytes remain,"
                f" a header has {RECORD_HEADER_BYTES}"
            )
        stream_id, epoch, base_offset, max_timestamp, count, payload_bytes = RECORD_HEADER.unpack_from(
            view, at
        )
        broken = _broken_rule(stream_id, epoch, base_offset, count)
        payload_at = at + RECORD_HEADER_BYTES
        if broken is None and payload_bytes > length - payload_at:
            broken = f"payload length: {payload_bytes} bytes announced, {length - payload_at} remain"
        if broken is not None:
            raise ObjectCorruptError(f"{source}, position {position + at}: record {broken}")
        at = payload_at + payload_bytes
        yield StreamRecord(
            StreamId(stream_id), StreamEpoch(epoch), base_offset, count, max_timestamp, view[payload_at:at]
        )


def _broken_rule(stream_id: int, epoch: int, base_offset: int, count: int) -> str | None:
    if stream_id < 0:
        return f"stream id: {stream_id} is negative"
    if epoch < 0:
        return f"stream epoch: {epoch} is negative"
    if base_offset < 0:
        return f"base offset: {base_offset} is negative"
    if not 1 <= count <= RECORD_COUNT_MAX:
        return f"count: {count} is not within 1..{RECORD_COUNT_MAX}"
    if base_offset > OFFSET_MAX - count:
        return f"end offset: {base_offset} + {count} exceeds 64 bits"
    return None
