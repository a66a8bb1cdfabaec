"""Log meta: which slices of which streams are a partition's segments (docs/formats/partition-meta.md).

What lives here: the pure model and its JSON; the streams themselves are in `partition_log`. A segment is a half-open slice of each
stream; end −1 is open. Kafka's offset of a record is `segment base + (stream offset − slice start)`, in plain streams as in `.cleaned`
ones, where the cleaner stretched counts so that offsets stay contiguous.

A roll writes one small change, not the whole list: the list grows with retention, and rewriting it at every roll would cost the square.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

from ponor_runtime.identity import StreamId

from ponor_partition import meta_entry
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.meta_entry import MetaKey

StreamName: TypeAlias = str
DATA: Final = "log"
TIME: Final = "time"
TXN: Final = "txn"
CLEANED: Final = ".cleaned"
OPEN_END: Final = -1
SLICED: Final = (DATA, TIME, TXN)


@dataclass(frozen=True, slots=True)
class Slice:
    """Stream offsets [start, end); end −1 is open."""

    start: int
    end: int = OPEN_END

    def __contains__(self, stream_offset: int) -> bool:
        return self.start <= stream_offset and (self.end == OPEN_END or stream_offset < self.end)


class Content(NamedTuple):
    """What a segment holds: bytes of its batches, the largest timestamp and the base offset of the first batch that has it (−1: none)."""

    size_bytes: int = 0
    max_timestamp: int = -1
    max_timestamp_offset: int = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of Kafka offsets from `base_offset` on; `slices` names only streams that exist when it was made or grew.

    `content` is None while the segment is open.
    """

    base_offset: int
    suffix: str
    slices: tuple[tuple[str, Slice], ...]
    created_ms: int = 0
    content: Content | None = None

    def slice(self, name: str) -> Slice | None:
        """The segment's part of a stream (`log`, `time`, `txn`), None if it has none."""
        return next((part for known, part in self.slices if known == name), None)

    @property
    def data(self) -> Slice:
        """The part of the Data stream."""
        part = self.slice(DATA)
        assert part is not None
        return part

    @property
    def data_stream(self) -> StreamName:
        """Name of the stream that holds the segment's batches."""
        return DATA + self.suffix

    @property
    def end_offset(self) -> int:
        """Kafka offset behind the segment, which is closed."""
        assert self.data.end != OPEN_END, f"segment {self.base_offset} is open"
        return self.kafka_offset(self.data.end)

    def kafka_offset(self, stream_offset: int) -> int:
        """Kafka's offset of a stream offset within the Data slice."""
        return self.base_offset + (stream_offset - self.data.start)

    def stream_offset(self, kafka_offset: int) -> int:
        """The inverse of `kafka_offset`."""
        return self.data.start + (kafka_offset - self.base_offset)


class LogMeta:
    """Streams by name and segments by base offset; the last segment is the active one."""

    key: MetaKey = meta_entry.LOG

    def __init__(self) -> None:
        self.streams: dict[StreamName, StreamId] = {}
        self.segments: list[Segment] = []
        self.cleaned_to = 0
        """Every key below this Kafka offset was compared with all above it up to here; compaction goes on from here."""

    @property
    def active(self) -> Segment:
        """The segment that grows."""
        return self.segments[-1]

    def segment_of(self, kafka_offset: int) -> Segment:
        """The segment that holds an offset: the last one whose base is not above it (the first for lower offsets)."""
        index = bisect_right(self.segments, kafka_offset, key=_base_offset) - 1
        return self.segments[max(index, 0)]

    def segment_after(self, segment: Segment) -> Segment | None:
        """The next segment, None behind the active one."""
        index = bisect_right(self.segments, segment.base_offset, key=_base_offset)
        return self.segments[index] if index < len(self.segments) else None

    # Changes: bytes for the Meta stream, to be applied by `apply_change` once they are on it.

    @staticmethod
    def stream_change(name: StreamName, stream_id: StreamId) -> bytes:
        """A stream exists from now on."""
        return _encode({"stream": name, "id": stream_id})

    @staticmethod
    def roll_change(
        base_offset: int, ends: dict[str, int], created_ms: int, content: Content | None = None
    ) -> bytes:
        """Close the active segment (if any), of that content, at stream offsets `ends` and start a new one there, at Kafka offset `base_offset`."""
        closed = {} if content is None else {"closed": list(content)}
        return _encode({"roll": base_offset, "ends": ends, "created_ms": created_ms, **closed})

    @staticmethod
    def drop_change(before_offset: int) -> bytes:
        """Forget the segments that lie wholly below a Kafka offset."""
        return _encode({"drop_before": before_offset})

    @staticmethod
    def clean_change(cleaned: Segment) -> bytes:
        """A cleaned segment takes the place of the closed segments of the same Kafka offsets."""
        return _encode({"cleaned": _row(cleaned)})

    @staticmethod
    def cleaned_to_change(offset: int) -> bytes:
        """A pass of the cleaner ended: see `cleaned_to`."""
        return _encode({"cleaned_to": offset})

    def apply_change(self, value: bytes) -> None:
        """Apply one change, written now or replayed from the Meta stream.

        Raises:
            PartitionCorruptError: not a known change, or it leads to segments that break the rules.
        """
        try:
            self._apply(json.loads(value))
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise PartitionCorruptError(f"LOG change {value[:80]!r} is not applicable: {error}") from error
        self.validate()

    def _apply(self, change: dict[str, Any]) -> None:
        match change:
            case {"stream": str(name), "id": int(stream_id)}:
                assert name not in self.streams, f"stream {name} is known already"
                self.streams[name] = StreamId(stream_id)
                if name in SLICED and self.segments and self.active.slice(name) is None:
                    self.segments[-1] = replace(self.active, slices=(*self.active.slices, (name, Slice(0))))
            case {"roll": int(base_offset), "ends": dict(ends), "created_ms": int(created_ms)}:
                self._apply_roll(base_offset, ends, created_ms, _content(change.get("closed")))
            case {"cleaned": dict(row)}:
                self._apply_cleaned(_segment(row))
            case {"cleaned_to": int(offset)}:
                self.cleaned_to = offset
            case {"drop_before": int(before_offset)}:
                first = self.segment_of(before_offset).base_offset
                self.segments = [segment for segment in self.segments if segment.base_offset >= first]
            case _:
                raise KeyError("unknown kind of change")

    def _apply_roll(
        self, base_offset: int, ends: dict[str, int], created_ms: int, content: Content | None
    ) -> None:
        if self.segments:
            slices = tuple((name, replace(part, end=ends[name])) for name, part in self.active.slices)
            self.segments[-1] = replace(self.active, slices=slices, content=content)
        starts = tuple((name, Slice(end)) for name, end in ends.items())
        self.segments.append(Segment(base_offset, "", starts, created_ms))

    def _apply_cleaned(self, cleaned: Segment) -> None:
        first = bisect_right(self.segments, cleaned.base_offset, key=_base_offset) - 1
        behind = bisect_right(self.segments, cleaned.end_offset - 1, key=_base_offset)
        assert first >= 0, f"nothing begins at or below {cleaned.base_offset}"
        assert self.segments[first].base_offset == cleaned.base_offset, (
            f"no segment begins at {cleaned.base_offset}"
        )
        assert self.segments[behind - 1].data.end != OPEN_END, "the active segment is not cleaned"
        self.segments[first:behind] = [cleaned]

    def snapshot(self) -> bytes:
        cleaned_to = {"cleaned_to": self.cleaned_to} if self.cleaned_to else {}
        return _encode({"streams": self.streams, "segments": list(map(_row, self.segments)), **cleaned_to})

    def restore(self, value: bytes) -> None:
        try:
            content = json.loads(value)
            self.streams = {
                str(name): StreamId(int(stream_id)) for name, stream_id in content["streams"].items()
            }
            self.segments = [_segment(row) for row in content["segments"]]
            self.cleaned_to = int(content.get("cleaned_to", 0))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PartitionCorruptError(f"LOG value {value[:80]!r} is not log meta: {error}") from error
        self.validate()

    def validate(self) -> None:
        """Check the rules of the model.

        Raises:
            PartitionCorruptError: names the rule that is broken.
        """
        for segment in self.segments:
            if segment.slice(DATA) is None:
                raise PartitionCorruptError(
                    f"log meta: segment {segment.base_offset} has no slice of the Data stream"
                )
            if segment.data_stream not in self.streams:
                raise PartitionCorruptError(
                    f"log meta: segment {segment.base_offset} lies in an unknown stream"
                )
        for before, after in pairwise(self.segments):
            if before.data.end == OPEN_END or before.base_offset >= after.base_offset:
                raise PartitionCorruptError(
                    f"log meta: segments {before.base_offset} and {after.base_offset} are not in order"
                )
            if before.kafka_offset(before.data.end) != after.base_offset:
                raise PartitionCorruptError(
                    f"log meta: segment {before.base_offset} does not reach {after.base_offset}"
                )
        if self.segments and self.active.data.end != OPEN_END:
            raise PartitionCorruptError(f"log meta: the last segment {self.active.base_offset} is not open")


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _row(segment: Segment) -> dict[str, Any]:
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
    """None for a segment that is open, or was closed before contents were noted."""
    return None if row is None else Content(*map(int, row))


def _encode(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
