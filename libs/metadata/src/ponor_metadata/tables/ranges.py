"""Pieces of streams in a stream set object: the packed form in log and image, and the decoded form for
searches.

Layout (docs/formats/records.md): pieces sorted by (stream id, start offset) without overlaps. A piece
consists of three unsigned LEB128 numbers, each in its shortest form of at most 9 bytes: the stream id minus
that of the previous piece (first piece: minus 0); the start offset, minus the end of the previous piece if
the stream is the same; the number of offsets, at least 1. The encoding is canonical: each list of pieces has
exactly one encoding. Compiled code packs and unpacks. When it rejects data, the interpreted versions here
raise an error that describes the fault.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from ponor_runtime.identity import StreamId

from ponor_metadata.tables.ranges_native import decode_columns, encode_list, join_columns

INT64_MAX: Final = (1 << 63) - 1


class RangesCorruptError(ValueError):
    """A packed form breaks the layout; the message names the byte and the violated rule."""


class RangesOverlapError(ValueError):
    """Two pieces contain the same offset; the message names it."""


@dataclass(frozen=True, slots=True, order=True)
class StreamPiece:
    """[start_offset, end_offset) of a stream."""

    stream_id: StreamId
    start_offset: int
    end_offset: int


class DecodedRanges:
    """Pieces as three parallel int64 arrays, in which binary searches find a piece."""

    __slots__ = ("_ends", "_starts", "_stream_ids")

    def __init__(self, stream_ids: array[int], starts: array[int], ends: array[int]) -> None:
        assert len(stream_ids) == len(starts) == len(ends)
        self._stream_ids = stream_ids
        self._starts = starts
        self._ends = ends

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[StreamPiece]:
        for stream_id, start, end in zip(self._stream_ids, self._starts, self._ends, strict=True):
            yield StreamPiece(StreamId(stream_id), start, end)

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """(stream id, start offset, end offset) of every piece, without an object per piece."""
        return zip(self._stream_ids, self._starts, self._ends, strict=True)

    def stream_ids(self) -> Iterator[StreamId]:
        """Each stream once, in order."""
        previous = -1
        for stream_id in self._stream_ids:
            if stream_id != previous:
                previous = stream_id
                yield StreamId(stream_id)

    @property
    def columns(self) -> tuple[array[int], array[int], array[int]]:
        """Stream ids, starts and ends of all pieces, in order. Do not change them."""
        return self._stream_ids, self._starts, self._ends

    @property
    def stream_id_column(self) -> array[int]:
        """The stream id of every piece, in order."""
        return self._stream_ids

    def of_stream(self, stream_id: StreamId) -> Iterator[StreamPiece]:
        """The pieces of one stream, in offset order."""
        for i in range(*self._bounds(stream_id)):
            yield StreamPiece(stream_id, self._starts[i], self._ends[i])

    def end_of(self, stream_id: StreamId) -> int | None:
        """The end of the stream's last piece; None if there is none."""
        low, high = self._bounds(stream_id)
        return self._ends[high - 1] if low < high else None

    def find(self, stream_id: StreamId, offset: int) -> StreamPiece | None:
        """The piece that contains the offset of the stream, or None."""
        low, high = self._bounds(stream_id)
        i = bisect_right(self._starts, offset, low, high) - 1
        if i < low or self._ends[i] <= offset:
            return None
        return StreamPiece(stream_id, self._starts[i], self._ends[i])

    def _bounds(self, stream_id: StreamId) -> tuple[int, int]:
        low = bisect_left(self._stream_ids, stream_id)
        return low, bisect_right(self._stream_ids, stream_id, low)


class PackedRanges:
    """Packed pieces, decoded at the first search. Immutable; equal if the bytes are equal."""

    __slots__ = ("_decoded", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._decoded: DecodedRanges | None = None

    @property
    def decoded(self) -> DecodedRanges:
        """The searchable form.

        Raises:
            RangesCorruptError: the bytes break the layout.
        """
        if self._decoded is None:
            self._decoded = decode_ranges(self.data)
        return self._decoded

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedRanges) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"PackedRanges({len(self.data)} bytes)"


def encode_ranges(pieces: Iterable[StreamPiece]) -> bytes:
    """Pack pieces; see `encode_runs`."""
    return encode_runs([(each.stream_id, each.start_offset, each.end_offset) for each in pieces])


def encode_runs(runs: list[tuple[int, int, int]]) -> bytes:
    """Pack (stream id, start offset, end offset) of pieces, which must be sorted by (stream id, start offset)
    and not overlap.

    Raises:
        ValueError: the pieces are unsorted or overlap, a number exceeds int64, or a piece is empty.
    """
    packed = encode_list(runs)
    return encode_interpreted(runs) if packed is None else packed


def encode_interpreted(runs: Iterable[tuple[int, int, int]]) -> bytes:
    """See `encode_runs`."""
    packed = bytearray()
    previous = StreamPiece(StreamId(0), 0, 0)
    for piece in (StreamPiece(StreamId(stream_id), start, end) for stream_id, start, end in runs):
        if not 0 <= piece.start_offset < piece.end_offset <= INT64_MAX:
            raise ValueError(f"{piece} is empty or outside of int64")
        same_stream = piece.stream_id == previous.stream_id
        start_delta = piece.start_offset - (previous.end_offset if same_stream else 0)
        if piece.stream_id < previous.stream_id or start_delta < 0 or piece.stream_id > INT64_MAX:
            raise ValueError(f"{piece} does not come after {previous}")
        _append_varint(packed, piece.stream_id - previous.stream_id)
        _append_varint(packed, start_delta)
        _append_varint(packed, piece.end_offset - piece.start_offset)
        previous = piece
    return bytes(packed)


def decode_ranges(data: bytes) -> DecodedRanges:
    """Unpack pieces; the inverse of `encode_ranges`.

    Raises:
        RangesCorruptError: the bytes break the layout.
    """
    columns = decode_columns(data)
    # Compiled code returns None for invalid data; the interpreted version then raises an error with details.
    return DecodedRanges(*(decode_interpreted(data) if columns is None else columns))


def join_runs(parts: Sequence[DecodedRanges]) -> list[tuple[int, int, int]]:
    """Return the runs (stream id, start offset, end offset) of all parts, sorted, with adjacent runs joined.

    Raises:
        RangesOverlapError: two runs overlap.
    """
    runs = join_columns([each.columns for each in parts])
    # As in `decode_ranges`, the interpreted version raises the error.
    return join_interpreted(chain.from_iterable(each.runs() for each in parts)) if runs is None else runs


def join_interpreted(runs: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """See `join_runs`."""
    result: list[tuple[int, int, int]] = []
    last_stream = last_end = -1
    for stream_id, start, end in sorted(runs):
        if stream_id != last_stream or start > last_end:
            result.append((stream_id, start, end))
        elif start == last_end:
            result[-1] = (stream_id, result[-1][1], end)
        else:
            raise RangesOverlapError(f"offset {start} of stream {stream_id} is contained twice")
        last_stream, last_end = stream_id, end
    return result


def decode_interpreted(data: bytes) -> tuple[array[int], array[int], array[int]]:
    """Stream ids, starts and ends; see `decode_ranges`."""
    stream_ids, starts, ends = array("q"), array("q"), array("q")
    stream_id = end = position = 0
    while position < len(data):
        stream_delta, position = _read_varint(data, position)
        start_delta, position = _read_varint(data, position)
        count, position = _read_varint(data, position)
        start = start_delta if stream_delta else end + start_delta
        stream_id += stream_delta
        end = start + count
        if count == 0 or stream_id > INT64_MAX or end > INT64_MAX:
            raise RangesCorruptError(
                f"packed ranges: the piece before byte {position} is empty or outside of int64"
            )
        stream_ids.append(stream_id)
        starts.append(start)
        ends.append(end)
    return stream_ids, starts, ends


def _append_varint(packed: bytearray, value: int) -> None:
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 56:
            fault = (
                "data ends inside a number"
                if position >= len(data)
                else "contains a number above the maximum of int64"
            )
            raise RangesCorruptError(f"packed ranges: {fault} at byte {position}")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise RangesCorruptError(
                    f"packed ranges: a number before byte {position} is not encoded in the shortest form"
                )
            return value, position
        shift += 7
