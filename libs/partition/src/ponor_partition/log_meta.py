"""Log meta: the segments of a partition as slices of streams (docs/formats/partition-meta.md).

The pure model and its encoding. A roll writes one small change instead of the whole list, because the list
grows with retention and rewriting it at every roll would cost quadratic time. A changed segment is checked
only against its neighbours, and the rows of closed segments stay encoded in memory. A roll therefore costs
the same for any number of segments, and a snapshot only copies the rows.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from ponor_runtime.identity import StreamId

from ponor_partition import meta_entry
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.meta_entry import MetaKey, MetaValue
from ponor_partition.segment import (
    DATA,
    OPEN_END,
    ROW_BYTES,
    SLICED,
    Content,
    Segment,
    Slice,
    StreamName,
    decode_rows,
    encode_row,
)

VERSION: Final = 1
_UNKNOWN_TIMESTAMP: Final = (1 << 63) - 1
_HEADER: Final = struct.Struct(">BII")
"""Version, bytes of the JSON head, number of rows; the head and the rows follow."""
ROWS_PER_STEP: Final = 256
CHANGES_PER_STEP: Final = 64
"""Rows and changes that a replay processes per step, in about a millisecond."""


class LogMeta:
    """Streams by name and segments by base offset; the last segment is the active one."""

    key: MetaKey = meta_entry.LOG

    def __init__(self) -> None:
        self.streams: dict[StreamName, StreamId] = {}
        self.segments: list[Segment] = []
        self.cleaned_to = 0
        """Kafka offset that log compaction has reached: the cleaner has compared the keys of all records
        below it with each other."""
        self.closed_bytes = 0
        """Bytes of all closed segments."""
        self.replacements = 0
        """Number of times that closed segments were dropped or replaced; caches of their content are then
        outdated. A roll does not count."""
        self._rows = bytearray()  # encoded rows of the closed segments
        # For each closed segment, the largest timestamp in it and in all earlier ones; computed when
        # `first_reaching` needs it.
        self._reach: list[int] = []

    @property
    def active(self) -> Segment:
        """The segment that receives appends."""
        return self.segments[-1]

    def segment_of(self, kafka_offset: int) -> Segment:
        """The segment that contains an offset: the last one whose base offset is at or below it. For an
        offset below all segments, the first segment.
        """
        index = bisect_right(self.segments, kafka_offset, key=_base_offset) - 1
        return self.segments[max(index, 0)]

    def segments_after(self, segment: Segment) -> Iterator[Segment]:
        """Yield the segments after `segment`, in order."""
        first = bisect_right(self.segments, segment.base_offset, key=_base_offset)
        return (self.segments[at] for at in range(first, len(self.segments)))

    def first_reaching(self, timestamp: int) -> Segment:
        """The first closed segment that may contain this timestamp or a later one; if there is none, the
        active segment.
        """
        reach = self._reach
        for segment in islice(self.segments, len(reach), len(self.segments) - 1):
            newest = _UNKNOWN_TIMESTAMP if segment.content is None else segment.content.max_timestamp
            reach.append(max(newest, reach[-1]) if reach else newest)
        return self.segments[bisect_left(reach, timestamp)]

    # The caller encodes a change, appends it to the Meta stream, and then calls `apply_change`.

    @staticmethod
    def stream_change(name: StreamName, stream_id: StreamId) -> bytes:
        """Encode the creation of a stream."""
        return _encode({"stream": name, "id": stream_id})

    @staticmethod
    def roll_change(
        base_offset: int, ends: dict[str, int], created_ms: int, content: Content | None = None
    ) -> bytes:
        """Encode a roll.

        The active segment, if any, ends at the stream offsets `ends` and gets `content`. A new segment
        starts at these stream offsets and at the Kafka offset `base_offset`.
        """
        closed = {} if content is None else {"closed": list(content)}
        return _encode({"roll": base_offset, "ends": ends, "created_ms": created_ms, **closed})

    @staticmethod
    def drop_change(before_offset: int) -> bytes:
        """Encode the removal of all segments that end at or before a Kafka offset."""
        return _encode({"drop_before": before_offset})

    @staticmethod
    def clean_change(cleaned: Segment) -> bytes:
        """Encode that `cleaned` replaces the closed segments in its range of Kafka offsets."""
        return _encode({"cleaned": _named(cleaned)})

    @staticmethod
    def cleaned_to_change(offset: int) -> bytes:
        """Encode the end of a cleaner pass: the new value of `cleaned_to`."""
        return _encode({"cleaned_to": offset})

    def apply_change(self, value: bytes) -> None:
        """Apply one change, new or replayed from the Meta stream.

        The cost does not depend on the number of retained segments.

        Raises:
            PartitionCorruptError: the change is unknown, or its result violates the rules.
        """
        try:
            self._apply(json.loads(value))
        except (ValueError, KeyError, TypeError, AssertionError, struct.error) as error:
            raise PartitionCorruptError(f"LOG change {value[:80]!r} cannot be applied: {error}") from error

    def _apply(self, change: dict[str, Any]) -> None:
        match change:
            case {"stream": str(name), "id": int(stream_id)}:
                assert name not in self.streams, f"stream {name} already exists"
                self.streams[name] = StreamId(stream_id)
                if name in SLICED and self.segments and self.active.slice(name) is None:
                    slices = (*self.active.slices, (name, Slice(0)))
                    self.segments[-1] = self.active._replace(slices=slices)
            case {"roll": int(base_offset), "ends": dict(ends), "created_ms": int(created_ms)}:
                self._apply_roll(base_offset, ends, created_ms, _content(change.get("closed")))
            case {"cleaned": dict(row)}:
                self._apply_cleaned(_segment(row))
            case {"cleaned_to": int(offset)}:
                self.cleaned_to = offset
            case {"drop_before": int(before_offset)}:
                gone = max(bisect_right(self.segments, before_offset, key=_base_offset) - 1, 0)
                self._replace_closed(0, gone, ())
            case _:
                raise KeyError("unknown kind of change")

    def _apply_roll(
        self, base_offset: int, ends: dict[str, int], created_ms: int, content: Content | None
    ) -> None:
        if self.segments:
            slices = tuple((name, Slice(part.start, ends[name])) for name, part in self.active.slices)
            closed = self.active._replace(slices=slices, content=content)
            self.segments[-1] = closed
            self._rows += encode_row(closed)
            self.closed_bytes += closed.size_bytes
        starts = tuple((name, Slice(end)) for name, end in ends.items())
        self.segments.append(Segment(base_offset, "", starts, created_ms))
        self._check(max(len(self.segments) - 2, 0), len(self.segments))

    def _apply_cleaned(self, cleaned: Segment) -> None:
        first = bisect_right(self.segments, cleaned.base_offset, key=_base_offset) - 1
        behind = bisect_right(self.segments, cleaned.end_offset - 1, key=_base_offset)
        assert first >= 0, f"no segment starts at or below {cleaned.base_offset}"
        assert self.segments[first].base_offset == cleaned.base_offset, (
            f"no segment starts at {cleaned.base_offset}"
        )
        assert self.segments[behind - 1].data.end != OPEN_END, "the active segment cannot be cleaned"
        self._replace_closed(first, behind, (cleaned,))
        self._check(max(first - 1, 0), first + 2)

    def _replace_closed(self, first: int, behind: int, by: Sequence[Segment]) -> None:
        """Replace the closed segments [first, behind) with the segments `by`."""
        self.closed_bytes += sum(segment.size_bytes for segment in by)
        self.closed_bytes -= sum(segment.size_bytes for segment in self.segments[first:behind])
        self.segments[first:behind] = by
        self._rows[first * ROW_BYTES : behind * ROW_BYTES] = b"".join(map(encode_row, by))
        self._reach.clear()
        self.replacements += 1

    def snapshot(self) -> bytes:
        """Encode the whole value; copies the encoded rows."""
        cleaned_to = {"cleaned_to": self.cleaned_to} if self.cleaned_to else {}
        head = _encode({"streams": self.streams, **cleaned_to})
        active = encode_row(self.active) if self.segments else b""
        return b"".join((_HEADER.pack(VERSION, len(head), len(self.segments)), head, self._rows, active))

    def restore(self, value: bytes) -> None:
        """Replace the state with a snapshot.

        Raises:
            PartitionCorruptError: the value is not a snapshot, or it violates the rules.
        """
        for _ in self.restoring(value):
            pass

    def replaying(self, value: MetaValue) -> Generator[None, None, None]:
        """Restore the whole value and apply its changes, in steps of about a millisecond.

        Raises:
            PartitionCorruptError: as for `restore` and `apply_change`.
        """
        if value.whole is None:
            raise PartitionCorruptError("LOG: changes without a complete value before them")
        yield from self.restoring(value.whole)
        for number, change in enumerate(value.changes, 1):
            self.apply_change(change)
            if number % CHANGES_PER_STEP == 0:
                yield

    def restoring(self, value: bytes) -> Generator[None, None, None]:
        """Run `restore` in steps."""
        try:
            version, head_bytes, count = _HEADER.unpack_from(value)
            rows_at = _HEADER.size + head_bytes
            head = json.loads(value[_HEADER.size : rows_at])
            streams = {str(name): StreamId(int(stream_id)) for name, stream_id in head["streams"].items()}
            cleaned_to = int(head.get("cleaned_to", 0))
        except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PartitionCorruptError(f"LOG value {value[:80]!r} cannot be decoded: {error}") from error
        if version != VERSION or rows_at + count * ROW_BYTES != len(value):
            raise PartitionCorruptError(
                f"LOG value: its version {version} is not {VERSION}, or its {len(value)} bytes do"
                f" not match its count of {count} segments"
            )
        self.streams, self.segments, self.cleaned_to = streams, [], cleaned_to
        rows = memoryview(value)[rows_at:]
        for first in range(0, count, ROWS_PER_STEP):
            self._restore_rows(rows[first * ROW_BYTES : (first + ROWS_PER_STEP) * ROW_BYTES])
            yield
        self._rows = bytearray(rows[: max(count - 1, 0) * ROW_BYTES])
        self.closed_bytes = sum(segment.size_bytes for segment in self.segments[:-1])
        self._reach.clear()
        if self.segments and self.active.data.end != OPEN_END:
            raise PartitionCorruptError(f"log meta: the last segment, {self.active.base_offset}, is not open")

    def _restore_rows(self, rows: memoryview) -> None:
        first = len(self.segments)
        try:
            self.segments.extend(decode_rows(rows))
        except ValueError as error:
            raise PartitionCorruptError(f"LOG value: {error}") from error
        self._check(max(first - 1, 0), len(self.segments))

    def _check(self, first: int, behind: int) -> None:
        """Check the segments [first, behind) and their transitions.

        Raises:
            PartitionCorruptError: names the violated rule.
        """
        before: Segment | None = None
        for after in self.segments[first:behind]:
            if after.slice(DATA) is None:
                raise PartitionCorruptError(
                    f"log meta: segment {after.base_offset} has no slice of the Data stream"
                )
            if after.data_stream not in self.streams:
                raise PartitionCorruptError(
                    f"log meta: segment {after.base_offset} refers to an unknown stream"
                )
            if before is not None:
                _check_pair(before, after)
            before = after


def _check_pair(before: Segment, after: Segment) -> None:
    if before.data.end == OPEN_END or before.base_offset >= after.base_offset:
        raise PartitionCorruptError(
            f"log meta: segments {before.base_offset} and {after.base_offset} are not in order"
        )
    if before.end_offset != after.base_offset:
        raise PartitionCorruptError(
            f"log meta: segment {before.base_offset} ends at {before.end_offset}, and the next one begins"
            f" at {after.base_offset}"
        )


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _named(segment: Segment) -> dict[str, Any]:
    """Encode a segment as a JSON object for a change."""
    return {
        "base": segment.base_offset,
        "suffix": segment.suffix,
        "created_ms": segment.created_ms,
        **({} if segment.content is None else {"content": list(segment.content)}),
        **{name: [part.start, part.end] for name, part in segment.slices},
    }


def _segment(row: dict[str, Any]) -> Segment:
    slices = tuple((name, Slice(int(row[name][0]), int(row[name][1]))) for name in SLICED if name in row)
    return Segment(
        int(row["base"]),
        str(row["suffix"]),
        slices,
        int(row.get("created_ms", 0)),
        _content(row.get("content")),
    )


def _content(row: list[int] | None) -> Content | None:
    """Decode a content; None if the segment is open, or if its roll recorded no content."""
    return None if row is None else Content(*map(int, row))


def _encode(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
