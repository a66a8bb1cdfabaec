"""Record batches of format v2 where they lie: a view that reads the header, stamps offsets and finds records.

The checksum covers everything from the attributes on. Base offset, length, leader epoch and magic are outside it, so
that a broker can stamp the offset and the epoch without computing anything. Byte by byte: docs/formats/record-batch.md.
"""

from collections.abc import Iterator
from struct import Struct as PackedRun
from typing import Final

from crc32c import crc32c

from ponor_kafka.compression import Codec, decompress
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.primitives import Buffer
from ponor_kafka.records import RECORD_BYTES_MIN, Record, RecordBounds, decode_body, scan_records

MAGIC: Final = 2
HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12
"""Base offset and length: what stands before the bytes that the length counts."""
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

NO_PRODUCER_ID: Final = -1
NO_TIMESTAMP: Final = -1

BATCH_HEADER: Final = PackedRun(">qiibIhiqqqhii")
_PREFIX: Final = PackedRun(">qi")
_INT64: Final = PackedRun(">q")
_INT32: Final = PackedRun(">i")
_UINT32: Final = PackedRun(">I")
_ATTRIBUTES: Final = PackedRun(">h")
_MAX_TIMESTAMP: Final = PackedRun(">q")
_MAX_TIMESTAMP_POSITION: Final = 35


class OldRecordFormatError(KafkaWireError):
    """The records are of format v0 or v1, which Kafka 4 refuses (UNSUPPORTED_FOR_MESSAGE_FORMAT)."""


class BatchView:
    """One batch in a buffer. Setting offset or epoch needs the buffer to be writable; everything else only reads."""

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

    def __init__(self, view: memoryview) -> None:
        """View the batch that fills `view` exactly.

        Raises OldRecordFormatError for another magic, KafkaWireError when the header or its length does not fit.
        """
        if len(view) > MAGIC_POSITION and view[MAGIC_POSITION] != MAGIC:
            raise OldRecordFormatError(
                f"the record format v{view[MAGIC_POSITION]} is not supported, only v{MAGIC}"
            )
        if len(view) < HEADER_BYTES:
            raise KafkaWireError(f"{len(view)} bytes are too few for a record batch")
        self.view: Final = view
        fields: tuple[int, ...] = BATCH_HEADER.unpack_from(view)
        self.base_offset, length, self.leader_epoch, _, self.crc, self.attributes, self.last_offset_delta = (
            fields[:7]
        )
        self.first_timestamp, self.max_timestamp, self.producer_id = fields[7:10]
        self.producer_epoch, self.base_sequence, self.record_count = fields[10:]
        if length + LENGTH_PREFIX_BYTES != len(view):
            raise KafkaWireError(f"a batch claims {length} bytes and has {len(view) - LENGTH_PREFIX_BYTES}")

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
        """The sequence number of the last record: 2^31 - 1 is followed by 0. -1 without a producer id."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFF_FFFF

    @property
    def codec(self) -> Codec:
        """Raises KafkaWireError for the three values that no codec has."""
        number = self.attributes & CODEC_MASK
        if number > Codec.ZSTD:
            raise KafkaWireError(f"no codec has the number {number}")
        return Codec(number)

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
        """When compaction may drop the batch's tombstones; it reuses the first timestamp's place."""
        return self.first_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    def check_crc(self) -> None:
        """Raise KafkaWireError when the bytes are not those the producer sent."""
        actual = crc32c(self.view[ATTRIBUTES_POSITION:])
        if actual != self.crc:
            raise KafkaWireError(
                f"the batch at offset {self.base_offset} has CRC {actual:08x}, not {self.crc:08x}"
            )

    def set_base_offset(self, offset: int) -> None:
        """Stamp the offset of the first record, in place."""
        _INT64.pack_into(self.view, 0, offset)
        self.base_offset = offset

    def set_leader_epoch(self, epoch: int) -> None:
        """Stamp the leader epoch, in place."""
        _INT32.pack_into(self.view, LENGTH_PREFIX_BYTES, epoch)
        self.leader_epoch = epoch

    def set_log_append_time(self, timestamp_ms: int) -> None:
        """Make all records carry the broker's time; this lies inside the checksum, which is computed anew."""
        self.attributes |= TIMESTAMP_TYPE_BIT
        self.max_timestamp = timestamp_ms
        _ATTRIBUTES.pack_into(self.view, ATTRIBUTES_POSITION, self.attributes)
        _MAX_TIMESTAMP.pack_into(self.view, _MAX_TIMESTAMP_POSITION, timestamp_ms)
        self.crc = crc32c(self.view[ATTRIBUTES_POSITION:])
        _UINT32.pack_into(self.view, CRC_POSITION, self.crc)

    def records(self, decompressed_bytes_max: int) -> Iterator[Record]:
        """Decode every record, decompressing when needed. Raises KafkaWireError when anything does not fit."""
        data = self._data(decompressed_bytes_max)
        for bounds in scan_records(data, self.record_count):
            key, value, headers = decode_body(data, bounds)
            yield Record(self.base_offset + bounds.offset_delta, self._timestamp(bounds), key, value, headers)

    def check_records(self, decompressed_bytes_max: int) -> None:
        """What Kafka checks of every batch: the records fit, and their offset deltas count up from 0.

        Raises KafkaWireError otherwise. Costs a decompression and a walk over all records.
        """
        for index, bounds in enumerate(scan_records(self._data(decompressed_bytes_max), self.record_count)):
            if bounds.offset_delta != index:
                raise KafkaWireError(f"record {index} has the offset delta {bounds.offset_delta}")

    def find_timestamp(self, timestamp_ms: int, decompressed_bytes_max: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record that is not older than `timestamp_ms`, or None."""
        if self.record_count <= 0 or self.max_timestamp < timestamp_ms:
            return None
        for bounds in scan_records(self._data(decompressed_bytes_max), self.record_count):
            timestamp = self._timestamp(bounds)
            if timestamp >= timestamp_ms:
                return self.base_offset + bounds.offset_delta, timestamp
        return None

    def _data(self, decompressed_bytes_max: int) -> Buffer:
        if self.record_count < 0:
            raise KafkaWireError(f"a batch claims {self.record_count} records")
        data = decompress(self.codec, self.view[HEADER_BYTES:], decompressed_bytes_max)
        if self.record_count * RECORD_BYTES_MIN > len(data):
            raise KafkaWireError(f"a batch claims {self.record_count} records in {len(data)} bytes")
        return data if isinstance(data, bytes) else bytes(data)

    def _timestamp(self, bounds: RecordBounds) -> int:
        return (
            self.max_timestamp if self.is_log_append_time else self.first_timestamp + bounds.timestamp_delta
        )

    def __repr__(self) -> str:
        return (
            f"BatchView(base_offset={self.base_offset}, record_count={self.record_count}, "
            f"size_bytes={self.size_bytes}, attributes={self.attributes:#x}, producer_id={self.producer_id})"
        )


def split_batches(records: memoryview) -> Iterator[BatchView]:
    """The batches of a records field, one behind the other, which must fill it exactly.

    Raises KafkaWireError where they do not. Empty records yield nothing.
    """
    pos, end = 0, len(records)
    while pos < end:
        size = batch_bytes(records, pos)
        if size > end - pos:
            raise KafkaWireError(f"a batch at byte {pos} claims {size} bytes where {end - pos} are left")
        yield BatchView(records[pos : pos + size])
        pos += size


def batch_bytes(buf: Buffer, pos: int) -> int:
    """The size of the batch that starts at `pos`, its prefix included. Raises KafkaWireError if none can start there."""
    if len(buf) - pos < LENGTH_PREFIX_BYTES:
        raise KafkaWireError(f"{len(buf) - pos} bytes are too few for a record batch")
    length: int = _PREFIX.unpack_from(buf, pos)[1]
    if length + LENGTH_PREFIX_BYTES <= MAGIC_POSITION:
        raise KafkaWireError(f"a batch at byte {pos} claims {length} bytes")
    return length + LENGTH_PREFIX_BYTES
