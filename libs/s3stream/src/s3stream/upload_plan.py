"""Assignment of data to objects.

A stream's run of at least the split size becomes a stream object; the rest becomes one stream set object. A
small rest does not get an object if there are stream objects: it is carried to the next upload, or shares the
object of the smallest run (docs/design/storage-and-write-path.md#small-rests). The number of objects
therefore depends on the bytes, not on the number of streams. A rest with more streams than one compaction can
split becomes several stream set objects (docs/design/storage-and-write-path.md#narrow-set-objects).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ponor_runtime.identity import StreamEpoch, StreamId

from s3stream.records import StreamRecord
from s3stream.settings import COMMIT_OBJECTS_MAX

SMALL_REST_DIVISOR = 8
"""A small rest is at most this part of its block, so that repeated carrying moves few bytes."""


@dataclass(frozen=True, slots=True)
class UploadPiece:
    """Data of one stream at one epoch that is not uploaded yet: offsets [start_offset, end_offset)
    without gaps, as lists of records in order.
    """

    stream_id: StreamId
    epoch: StreamEpoch
    start_offset: int
    end_offset: int
    size_bytes: int
    runs: tuple[Sequence[StreamRecord], ...]


@dataclass(frozen=True, slots=True)
class CommitGroup:
    """Content of one commit: pieces that share a stream set object, and pieces that become stream objects."""

    stream_set: tuple[UploadPiece, ...]
    stream_objects: tuple[UploadPiece, ...]

    @property
    def object_count(self) -> int:
        """Number of objects to prepare."""
        return len(self.stream_objects) + bool(self.stream_set)


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """Commits in order, and the pieces that wait for the next upload."""

    groups: tuple[CommitGroup, ...]
    carried: tuple[UploadPiece, ...]

    @property
    def object_count(self) -> int:
        """Number of objects to prepare for all commits."""
        return sum(group.object_count for group in self.groups)

    @property
    def pieces(self) -> list[UploadPiece]:
        """All pieces that are uploaded now."""
        return [piece for group in self.groups for piece in (*group.stream_set, *group.stream_objects)]


def plan_upload(
    pieces: Sequence[UploadPiece],
    *,
    split_size_bytes: int,
    commit_ranges_max: int,
    set_object_streams_max: int,
    small_rest_bytes_max: int,
    may_carry: bool,
) -> UploadPlan:
    """Assign pieces to objects.

    Args:
        pieces: at most one per stream, sorted by stream id.
        split_size_bytes: a piece of at least this size becomes a stream object.
        commit_ranges_max: ranges in one commit, which also has at most `COMMIT_OBJECTS_MAX` stream
            objects.
        set_object_streams_max: streams of one stream set object.
        small_rest_bytes_max: the largest rest that gets no stream set object if there are stream objects.
        may_carry: whether such a rest may wait for the next upload.
    """
    assert split_size_bytes > 0
    assert commit_ranges_max > 0
    assert set_object_streams_max > 0
    assert all(a.stream_id < b.stream_id for a, b in pairwise(pieces)), "sorted"
    assert all(piece.start_offset < piece.end_offset for piece in pieces), "a piece is empty"
    if len(pieces) == 1:
        return UploadPlan((CommitGroup((), (pieces[0],)),), ())
    large = [piece for piece in pieces if piece.size_bytes >= split_size_bytes]
    rest = [piece for piece in pieces if piece.size_bytes < split_size_bytes]
    carried: list[UploadPiece] = []
    if large and rest and _is_small(rest, large, small_rest_bytes_max):
        if may_carry:
            carried, rest = rest, []
        else:
            host = min(large, key=_size_and_id)
            large.remove(host)
            rest = sorted([*rest, host], key=_stream_id)
    stream_sets = _in_equal_parts(rest, min(set_object_streams_max, commit_ranges_max))
    return UploadPlan(tuple(_groups(stream_sets, large, commit_ranges_max)), tuple(carried))


def _size_and_id(piece: UploadPiece) -> tuple[int, StreamId]:
    return piece.size_bytes, piece.stream_id


def _stream_id(piece: UploadPiece) -> StreamId:
    return piece.stream_id


def _is_small(rest: Sequence[UploadPiece], large: Sequence[UploadPiece], small_rest_bytes_max: int) -> bool:
    rest_bytes = sum(piece.size_bytes for piece in rest)
    total_bytes = rest_bytes + sum(piece.size_bytes for piece in large)
    return rest_bytes <= small_rest_bytes_max and rest_bytes * SMALL_REST_DIVISOR <= total_bytes


def _in_equal_parts(rest: Sequence[UploadPiece], streams_max: int) -> list[Sequence[UploadPiece]]:
    """Divide a rest into as few parts as the limit allows, in the order of their streams.

    The parts differ by at most one stream. A full part could not be joined with the part of the next
    upload that has nearly the same streams.
    """
    assert streams_max > 0
    count = -(-len(rest) // streams_max)
    return [rest[len(rest) * number // count : len(rest) * (number + 1) // count] for number in range(count)]


def _groups(
    stream_sets: Sequence[Sequence[UploadPiece]], large: Sequence[UploadPiece], ranges_max: int
) -> list[CommitGroup]:
    """Group objects into commits. One commit takes one stream set object and a limited number of ranges and
    stream objects.
    """
    groups: list[CommitGroup] = []
    waiting = deque(stream_sets)
    while waiting or large:
        stream_set = waiting.popleft() if waiting else ()
        room = min(ranges_max - len(stream_set), COMMIT_OBJECTS_MAX)
        assert room >= 0, "a stream set does not fit into one commit"
        groups.append(CommitGroup(tuple(stream_set), tuple(large[:room])))
        large = large[room:]
    return groups
