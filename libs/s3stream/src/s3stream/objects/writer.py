"""Writer of one object: takes records and returns buffers, without I/O and without copying payloads.

The upload decides which records go into which object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from crc32c import crc32c
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import ObjectId

from s3stream.objects.format import BLOCK_BYTES_MAX, BlockEntry, Footer, spread_of
from s3stream.ports import StreamRange
from s3stream.records import RECORD_HEADER, RECORD_HEADER_BYTES, StreamRecord

KEEP_GIL: Final = 0
"""Makes `crc32c` keep the interpreter's lock: the checksum of a payload takes microseconds, and
reacquiring the lock may take longer."""


class EncodedObject(NamedTuple):
    """A finished object: its bytes in order, their number, and the ranges for the commit."""

    buffers: list[Buffer]
    size_bytes: int
    ranges: list[StreamRange]


class ObjectWriter:
    """Groups records in (stream id, offset) order into blocks of one stream and one epoch each."""

    def __init__(self, object_id: ObjectId, *, block_bytes_max: int = BLOCK_BYTES_MAX) -> None:
        assert object_id >= 0
        assert block_bytes_max > 0
        self._object_id = object_id
        self._block_bytes_max = block_bytes_max
        self._buffers: list[Buffer] = []
        self._entries: list[BlockEntry] = []
        self._position = 0
        self._finished = False
        self._block_first: StreamRecord | None = None
        self._block_last: StreamRecord | None = None
        self._block_bytes = 0
        self._block_records = 0
        self._block_crc = 0
        self._block_max_timestamp = self._block_min_timestamp = -1

    def add(self, record: StreamRecord) -> None:
        """Add a single record; see `add_run`."""
        self.add_run((record,))

    def add_run(self, records: Iterable[StreamRecord]) -> None:
        """Append records in order. Their payloads must not change until the object is stored.

        A record may start after the end of its stream's previous record; the stream then has two ranges.

        Raises:
            ValueError: a record's stream, epoch or offset precedes that of the last record.
        """
        assert not self._finished, "the object is finished"
        append = self._buffers.append
        pack = RECORD_HEADER.pack
        last = self._block_last
        for record in records:
            payload = record.payload
            payload_bytes = len(payload)
            size_bytes = RECORD_HEADER_BYTES + payload_bytes
            if last is not None and not self._continues_block(last, record, size_bytes):
                self._close_block()
            if self._block_first is None:
                self._block_first = record
                self._block_max_timestamp = record.max_timestamp
                self._block_min_timestamp = record.min_timestamp
            else:  # inlined comparisons: a call per record would cost several times as much
                if record.max_timestamp > self._block_max_timestamp:  # noqa: PLR1730
                    self._block_max_timestamp = record.max_timestamp
                if record.min_timestamp < self._block_min_timestamp:  # noqa: PLR1730
                    self._block_min_timestamp = record.min_timestamp
            header = pack(
                record.stream_id,
                record.epoch,
                record.base_offset,
                record.max_timestamp,
                record.count,
                payload_bytes,
            )
            append(header)
            append(payload)
            crc = crc32c(header, self._block_crc, KEEP_GIL)
            self._block_crc = crc32c(payload, crc, KEEP_GIL)
            self._block_bytes += size_bytes
            self._block_records += 1
            self._block_last = last = record

    def finish(self) -> EncodedObject:
        """Close the last block and append index and footer.

        Raises:
            ValueError: no record was added; an object has at least one block.
        """
        assert not self._finished, "the object is finished"
        if self._block_first is None:
            raise ValueError(f"object {self._object_id} has no records")
        self._close_block()
        self._finished = True
        index = b"".join(entry.encode() for entry in self._entries)
        footer = Footer(
            self._object_id, self._position, len(index), len(self._entries), crc32c(index)
        ).encode()
        buffers = [*self._buffers, index, footer]
        return EncodedObject(buffers, self._position + len(index) + len(footer), _ranges(self._entries))

    def _continues_block(self, last: StreamRecord, record: StreamRecord, size_bytes: int) -> bool:
        if record.stream_id == last.stream_id:
            last_end_offset = last.base_offset + last.count
            if record.base_offset < last_end_offset or record.epoch < last.epoch:
                raise ValueError(
                    f"object {self._object_id}: record of stream {record.stream_id} at epoch {record.epoch},"
                    " offset"
                    f" {record.base_offset} follows one at epoch {last.epoch} that ends at {last_end_offset}"
                )
            return (
                record.epoch == last.epoch
                and record.base_offset == last_end_offset
                and self._block_bytes + size_bytes <= self._block_bytes_max
            )
        if record.stream_id < last.stream_id:
            raise ValueError(
                f"object {self._object_id}: stream {record.stream_id} follows stream {last.stream_id}"
            )
        return False

    def _close_block(self) -> None:
        first, last = self._block_first, self._block_last
        assert first is not None
        assert last is not None
        assert self._block_records > 0
        assert first.base_offset < last.end_offset
        self._entries.append(
            BlockEntry(
                first.stream_id,
                first.epoch,
                first.base_offset,
                last.end_offset,
                self._block_max_timestamp,
                self._position,
                self._block_bytes,
                self._block_records,
                self._block_crc,
                spread_of(self._block_min_timestamp, self._block_max_timestamp),
            )
        )
        self._position += self._block_bytes
        self._block_first = None
        self._block_bytes = self._block_records = self._block_crc = 0


def _ranges(entries: list[BlockEntry]) -> list[StreamRange]:
    """Return the ranges of the entries; adjacent blocks of one stream and epoch share a range."""
    ranges: list[StreamRange] = []
    for entry in entries:
        start = entry.start_offset
        if ranges:
            last = ranges[-1]
            if (last.stream_id, last.epoch, last.end_offset) == (entry.stream_id, entry.epoch, start):
                start = ranges.pop().start_offset
        ranges.append(StreamRange(entry.stream_id, entry.epoch, start, entry.end_offset))
    return ranges
