"""A segment of a partition's log: a range of Kafka offsets and the slices of streams that store it.

A slice is a half-open range of stream offsets; end −1 means open. A record's Kafka offset is `segment base +
(stream offset − slice start)`. This also holds in `.cleaned` streams, because the cleaner enlarges record
counts so that offsets stay contiguous.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

StreamName: TypeAlias = str
DATA: Final = "log"
TIME: Final = "time"
TXN: Final = "txn"
CLEANED: Final = ".cleaned"
OPEN_END: Final = -1
SLICED: Final = (DATA, TIME, TXN)

_ROW: Final = struct.Struct(">qqB6q3q")
"""Base offset, creation time, flags, the slices of `SLICED` (start, end), content. Absent fields are 0."""
ROW_BYTES: Final = _ROW.size
_HAS_TIME: Final = 0x01
_HAS_TXN: Final = 0x02
_HAS_CONTENT: Final = 0x04
_IS_CLEANED: Final = 0x08
_KNOWN_FLAGS: Final = _HAS_TIME | _HAS_TXN | _HAS_CONTENT | _IS_CLEANED


class Slice(NamedTuple):
    """Stream offsets [start, end); end −1 means open."""

    start: int
    end: int = OPEN_END


class Content(NamedTuple):
    """Summary of a segment: bytes of its batches, their largest timestamp, and the base offset of the first
    batch with this timestamp (−1: none).
    """

    size_bytes: int = 0
    max_timestamp: int = -1
    max_timestamp_offset: int = -1


class Segment(NamedTuple):
    """A range of Kafka offsets from `base_offset`.

    `slices` contains only streams that existed when the segment was written. `content` is None while the
    segment is open.
    """

    base_offset: int
    suffix: str
    slices: tuple[tuple[str, Slice], ...]
    created_ms: int = 0
    content: Content | None = None

    def slice(self, name: str) -> Slice | None:
        """The segment's slice of a stream (`log`, `time`, `txn`), or None."""
        for known, part in self.slices:
            if known == name:
                return part
        return None

    @property
    def data(self) -> Slice:
        """The slice of the Data stream."""
        part = self.slice(DATA)
        assert part is not None
        return part

    @property
    def data_stream(self) -> StreamName:
        """Name of the stream that holds the segment's batches."""
        return DATA + self.suffix

    @property
    def end_offset(self) -> int:
        """One past the last Kafka offset of a closed segment."""
        assert self.data.end != OPEN_END, f"segment {self.base_offset} is open"
        return self.kafka_offset(self.data.end)

    @property
    def size_bytes(self) -> int:
        """Bytes of the segment's batches; 0 if unknown."""
        return 0 if self.content is None else self.content.size_bytes

    def kafka_offset(self, stream_offset: int) -> int:
        """Convert a stream offset of the Data slice to a Kafka offset."""
        return self.base_offset + (stream_offset - self.data.start)

    def stream_offset(self, kafka_offset: int) -> int:
        """Convert a Kafka offset to a stream offset of the Data slice."""
        return self.data.start + (kafka_offset - self.base_offset)


def encode_row(segment: Segment) -> bytes:
    """Encode the segment as a row of fixed size (docs/formats/partition-meta.md)."""
    time, txn, content = segment.slice(TIME), segment.slice(TXN), segment.content
    flags = (
        (_HAS_TIME if time is not None else 0)
        | (_HAS_TXN if txn is not None else 0)
        | (_HAS_CONTENT if content is not None else 0)
        | (_IS_CLEANED if segment.suffix else 0)
    )
    assert segment.suffix in {"", CLEANED}, f"segment {segment.base_offset} has the suffix {segment.suffix!r}"
    return _ROW.pack(
        segment.base_offset,
        segment.created_ms,
        flags,
        *segment.data,
        *(time or (0, 0)),
        *(txn or (0, 0)),
        *(content or (0, 0, 0)),
    )


def decode_rows(rows: memoryview) -> Iterator[Segment]:
    """Decode consecutive whole rows.

    Raises:
        ValueError: a row has flags that are unknown to this release.
    """
    for (
        base,
        created_ms,
        flags,
        start,
        end,
        time_start,
        time_end,
        txn_start,
        txn_end,
        *content,
    ) in _ROW.iter_unpack(rows):
        if flags & ~_KNOWN_FLAGS:
            raise ValueError(f"segment {base} has unknown flags {flags:#x}")
        slices: tuple[tuple[str, Slice], ...] = ((DATA, Slice(start, end)),)
        if flags & _HAS_TIME:
            slices += ((TIME, Slice(time_start, time_end)),)
        if flags & _HAS_TXN:
            slices += ((TXN, Slice(txn_start, txn_end)),)
        yield Segment(
            base,
            CLEANED if flags & _IS_CLEANED else "",
            slices,
            created_ms,
            Content(*content) if flags & _HAS_CONTENT else None,
        )
