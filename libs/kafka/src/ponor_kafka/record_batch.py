"""In-place view of a record batch of format v2: reads the header, sets offsets and finds records.

The checksum covers everything from the attributes on. Base offset, length, leader epoch and magic are outside
it, so a broker can set offset and epoch without computing a checksum. Layout: docs/formats/record-batch.md.
"""

from collections.abc import Iterable, Iterator
from struct import Struct as PackedRun
from typing import Final

from crc32c import crc32c

from ponor_kafka.compression import Codec, decompress
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import Buffer
from ponor_kafka.record_rules import INT64_MAX, INT64_MIN
from ponor_kafka.record_walk import first_at_or_after, newest, walk_records
from ponor_kafka.records import RECORD_BYTES_MIN, Record, RecordBounds, decode_body, scan_records

MAGIC: Final = 2
HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12
"""Size of base offset and length, which the length field does not include."""
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

_CODECS: Final = tuple(Codec)
"""Codecs by number: indexing costs a fifth of `Codec(number)`."""
NO_PRODUCER_ID: Final = -1
NO_TIMESTAMP: Final = -1

BATCH_HEADER: Final = PackedRun(">qiibIhiqqqhii")
_PREFIX: Final = PackedRun(">qi")
_STAMP: Final = PackedRun(">qii")
"""Base offset, length, leader epoch; the length is rewritten unchanged."""
_INT64: Final = PackedRun(">q")
_INT32: Final = PackedRun(">i")
_UINT32: Final = PackedRun(">I")
_ATTRIBUTES: Final = PackedRun(">h")
_MAX_TIMESTAMP: Final = PackedRun(">q")
_MAX_TIMESTAMP_POSITION: Final = 35


class OldRecordFormatError(KafkaWireError):
    """The records have format v0 or v1, which Kafka 4 rejects (UNSUPPORTED_FOR_MESSAGE_FORMAT)."""


class BatchView:
    """One batch in a buffer. Setters need a writable buffer."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "crc",
        "first_timestamp",
        "last_offset_delta",
        "leader_epoch",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
        "view",
    )

    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, view: memoryview) -> None:
        """View the batch that fills `view` exactly.

        Raises OldRecordFormatError for another magic, KafkaWireError if header or length are wrong.
        """
        size = len(view)
        if size < HEADER_BYTES or view[MAGIC_POSITION] != MAGIC:
            raise _no_batch(view)
        self.view: Final = view
        (
            self.base_offset,
            length,
            self.leader_epoch,
            _,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.first_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = BATCH_HEADER.unpack_from(view)
        if length + LENGTH_PREFIX_BYTES != size:
            raise KafkaWireError(f"a batch claims {length} bytes, but has {size - LENGTH_PREFIX_BYTES}")

    @property
    def size_bytes(self) -> int:
        return len(self.view)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; wraps from 2^31 - 1 to 0. -1 without a producer id."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF

    @property
    def codec(self) -> Codec:
        """Raises KafkaWireError for the three unassigned values."""
        number = self.attributes & CODEC_MASK
        if number > Codec.ZSTD:
            raise KafkaWireError(f"unknown compression codec {number}")
        return _CODECS[number]

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time from which compaction may remove the batch's tombstones; the first-timestamp field contains
        it.
        """
        return self.first_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    def check_crc(self) -> None:
        """Raise KafkaWireError if the checksum does not match."""
        actual = crc32c(self.view[ATTRIBUTES_POSITION:])
        if actual != self.crc:
            raise KafkaWireError(
                f"the batch at offset {self.base_offset} has CRC {actual:08x}, but its header has"
                f" {self.crc:08x}"
            )

    def stamp(self, offset: int, leader_epoch: int) -> None:
        """Set base offset and leader epoch together, as every append does."""
        stamp(self.view, offset, leader_epoch)
        self.base_offset = offset
        self.leader_epoch = leader_epoch

    def set_log_append_time(self, timestamp_ms: int) -> None:
        """Set the broker's time for all records. The checksum covers these fields and is recomputed."""
        self._set_time(self.attributes | TIMESTAMP_TYPE_BIT, timestamp_ms)

    def set_create_time(self, max_timestamp_ms: int) -> None:
        """Keep the records' timestamps and set the largest one.

        Writes nothing if the header already contains this timestamp.
        """
        attributes = self.attributes & ~TIMESTAMP_TYPE_BIT
        if (attributes, max_timestamp_ms) != (self.attributes, self.max_timestamp):
            self._set_time(attributes, max_timestamp_ms)

    def _set_time(self, attributes: int, timestamp_ms: int) -> None:
        self.attributes = attributes
        self.max_timestamp = timestamp_ms
        _ATTRIBUTES.pack_into(self.view, ATTRIBUTES_POSITION, self.attributes)
        _MAX_TIMESTAMP.pack_into(self.view, _MAX_TIMESTAMP_POSITION, timestamp_ms)
        self.crc = crc32c(self.view[ATTRIBUTES_POSITION:])
        _UINT32.pack_into(self.view, CRC_POSITION, self.crc)

    def records(self, decompressed_bytes_max: int) -> Iterator[Record]:
        """Decode every record, decompressing if needed. Raises KafkaWireError for malformed records."""
        data = self._data(decompressed_bytes_max)
        data = data if isinstance(data, bytes) else bytes(data)
        for bounds in scan_records(data, self.record_count):
            key, value, headers = decode_body(data, bounds)
            yield Record(self.base_offset + bounds.offset_delta, self._timestamp(bounds), key, value, headers)

    def uncompressed(self, decompressed_bytes_max: int, scratch: bytearray | None = None) -> Buffer:
        """Return the records' bytes: a view of the batch if it is not compressed, otherwise possibly a view
        of `scratch` (see `decompress`).

        Raises KafkaWireError if they do not decompress within the limit.
        """
        return decompress(self.codec, self.view[HEADER_BYTES:], decompressed_bytes_max, scratch)

    def check_records(self, decompressed_bytes_max: int) -> None:
        """Check that the records are well-formed and their offset deltas count up from 0, as Kafka does for
        every batch.

        Raises KafkaWireError otherwise. Costs a decompression and a pass over all records.
        """
        data = self._data(decompressed_bytes_max)
        walk_records(data, self.record_count, 0, False, False, INT64_MIN, INT64_MAX, 0)

    def find_timestamp(
        self, timestamp_ms: int, decompressed_bytes_max: int, offset_min: int = 0
    ) -> tuple[int, int] | None:
        """Offset and timestamp of the first record at or after `offset_min` whose timestamp is at least
        `timestamp_ms`, or None.
        """
        if self.record_count <= 0 or self.max_timestamp < timestamp_ms:
            return None
        if self.is_log_append_time:
            return max(self.base_offset, offset_min), self.max_timestamp
        data = self._data(decompressed_bytes_max)
        found = first_at_or_after(
            data, self.record_count, self.first_timestamp, timestamp_ms, offset_min - self.base_offset
        )
        return None if found is None else (self.base_offset + found[0], found[1])

    def find_newest(self, decompressed_bytes_max: int, offset_min: int = 0) -> tuple[int, int] | None:
        """Offset and timestamp of the record with the largest timestamp at or after `offset_min`, the first
        one if there are several; None if no record is there.

        The timestamps are those of the records: the header's largest may differ (`batch_validation`).
        """
        if self.record_count <= 0:
            return None
        if self.is_log_append_time:
            return max(self.base_offset, offset_min), self.max_timestamp
        data = self._data(decompressed_bytes_max)
        found = newest(data, self.record_count, self.first_timestamp, offset_min - self.base_offset)
        return None if found is None else (self.base_offset + found[0], found[1])

    def _data(self, decompressed_bytes_max: int) -> Buffer:
        if self.record_count < 0:
            raise KafkaWireError(f"a batch claims {self.record_count} records")
        data = self.uncompressed(decompressed_bytes_max)
        if self.record_count * RECORD_BYTES_MIN > len(data):
            raise KafkaWireError(f"a batch claims {self.record_count} records in {len(data)} bytes")
        return data

    def _timestamp(self, bounds: RecordBounds) -> int:
        if self.is_log_append_time:
            return self.max_timestamp
        return wrapped_timestamp(self.first_timestamp + bounds.timestamp_delta)

    def __repr__(self) -> str:
        return (
            f"BatchView(base_offset={self.base_offset}, record_count={self.record_count}, "
            f"size_bytes={self.size_bytes}, attributes={self.attributes:#x}, producer_id={self.producer_id})"
        )


def wrapped_timestamp(timestamp: int) -> int:
    """Return a sum of timestamps and deltas as the 64-bit integer that Kafka's clients get.

    Producers may set any first timestamp and any delta, so the sum may have more bits.
    """
    if INT64_MIN <= timestamp <= INT64_MAX:
        return timestamp
    return ((timestamp - INT64_MIN) & 0xFFFF_FFFF_FFFF_FFFF) + INT64_MIN


def stamp(batch: memoryview, offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch of the batch that fills a buffer, in place."""
    _STAMP.pack_into(batch, 0, offset, len(batch) - LENGTH_PREFIX_BYTES, leader_epoch)


def _no_batch(view: memoryview) -> KafkaWireError:
    if len(view) > MAGIC_POSITION and view[MAGIC_POSITION] != MAGIC:
        return OldRecordFormatError(
            f"the record format v{view[MAGIC_POSITION]} is not supported, only v{MAGIC}"
        )
    return KafkaWireError(f"{len(view)} bytes are too few for a record batch")


def split_batches(records: memoryview) -> Iterable[BatchView]:
    """Split a records field into its consecutive batches, which must fill it exactly.

    Raises KafkaWireError otherwise, possibly during iteration. Empty records yield nothing.
    """
    if len(records) >= LENGTH_PREFIX_BYTES and batch_bytes(records, 0) == len(records):
        return (BatchView(records),)  # producers send one batch
    return _walk_batches(records)


def _walk_batches(records: memoryview) -> Iterator[BatchView]:
    pos, end = 0, len(records)
    while pos < end:
        size = batch_bytes(records, pos)
        if size > end - pos:
            raise KafkaWireError(f"a batch at byte {pos} claims {size} bytes, but only {end - pos} are left")
        yield BatchView(records[pos : pos + size])
        pos += size


def batch_bytes(buf: Buffer, pos: int) -> int:
    """Size of the batch at `pos`, including its prefix. Raises KafkaWireError if none can start there."""
    if len(buf) - pos < LENGTH_PREFIX_BYTES:
        raise KafkaWireError(f"{len(buf) - pos} bytes are too few for a record batch")
    length: int = _PREFIX.unpack_from(buf, pos)[1]
    if length + LENGTH_PREFIX_BYTES <= MAGIC_POSITION:
        raise KafkaWireError(f"a batch at byte {pos} claims {length} bytes")
    return length + LENGTH_PREFIX_BYTES
