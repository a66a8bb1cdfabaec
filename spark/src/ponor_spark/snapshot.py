"""The snapshot of a read: which topics, up to where, in which objects, kept by which lease. A value, picklable and compact.

What lives here: the shapes. How one is opened is `snapshot_opening`, what of it is read `planning`. It is made once for a DataFrame (or a micro-batch), travels
pickled to Spark's planning workers, and holds everything that planning needs besides the object store: 41 bytes for each piece of an object.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from ponor_spark.clip import AbortedRange

PIECE: Final = struct.Struct(">qqqqII?")
"""object id, size in bytes, start offset, end offset (of the stream), namespace (number in the snapshot), bucket index, whether that is all that the object holds."""
_END_OFFSET: Final = struct.Struct(">24xq9x")
assert _END_OFFSET.size == PIECE.size


class HeldPiece(NamedTuple):
    """An object holds [start_offset, end_offset) of a stream. `is_all`: and nothing else, so that `size_bytes` (of the object) is what these offsets take."""

    object_id: int
    size_bytes: int
    start_offset: int
    end_offset: int
    namespace: int
    bucket_index: int
    is_all: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """What keeps the objects that metadata index `index` or a later one names. `leased_until_ms` is cluster time; that was `cluster_time_ms` at the opening."""

    lease_id: int
    holder: str
    ttl_ms: int
    index: int
    leased_until_ms: int
    cluster_time_ms: int


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Kafka offsets [base_offset, end_offset) lie in a stream at `offset - kafka_shift`; all of them are committed.

    `max_timestamp_ms` is the largest of a closed segment; None where nobody noted it (−1: no record has one).
    """

    stream_id: int
    base_offset: int
    end_offset: int
    kafka_shift: int
    max_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """A partition: what of it can be read from objects is [log_start_offset, committed_end_offset).

    `segments` cover that without a gap, in order. `tail_end_offset` is what a broker said when the snapshot was opened (`tail=broker` alone), `leader` its address.
    """

    topic: str
    topic_id: bytes
    partition: int
    log_start_offset: int
    committed_end_offset: int
    segments: tuple[SegmentSlice, ...]
    aborted: tuple[AbortedRange, ...] = ()
    leader: str = ""
    tail_end_offset: int | None = None

    @property
    def readable_end_offset(self) -> int:
        """What `latest` means: the tail's end where there is one."""
        return max(self.committed_end_offset, self.tail_end_offset or 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything under one lease, as of metadata index `index` (at or above the lease's)."""

    cluster_id: str
    index: int
    lease: Lease
    object_store: str
    partitions: tuple[PartitionSnapshot, ...]
    namespaces: tuple[str, ...] = ()
    pieces: Mapping[int, bytes] = field(default_factory=dict)
    """By stream id: `PIECE` after `PIECE`, contiguous and in offset order."""
    brokers: tuple[str, ...] = ()
    """HOST:PORT of those that live, as the metadata has it: for tails where the options name none."""

    @property
    def lease_id(self) -> int:
        """Of the lease."""
        return self.lease.lease_id

    def pieces_of(self, stream_id: int, start_offset: int, end_offset: int) -> Iterator[HeldPiece]:
        """The pieces that hold stream offsets of [start_offset, end_offset), unclipped, in order."""
        return pieces_within(self.pieces.get(stream_id, b""), start_offset, end_offset)

    def with_tails(self, ends: Mapping[tuple[str, int], int]) -> Snapshot:
        """The same with what brokers said of the ends of (topic, partition): for `tail=broker`."""
        partitions = tuple(
            replace(each, tail_end_offset=ends.get((each.topic, each.partition), each.tail_end_offset))
            for each in self.partitions
        )
        return replace(self, partitions=partitions)


def pieces_within(packed: bytes, start_offset: int, end_offset: int) -> Iterator[HeldPiece]:
    """The packed pieces that hold something of [start_offset, end_offset), unclipped, in order."""

    def end_of(number: int) -> int:
        found: int = _END_OFFSET.unpack_from(packed, number * PIECE.size)[0]
        return found

    first = bisect_right(range(len(packed) // PIECE.size), start_offset, key=end_of)
    for piece in map(HeldPiece._make, PIECE.iter_unpack(memoryview(packed)[first * PIECE.size :])):
        if piece.start_offset >= end_offset:
            return
        yield piece
