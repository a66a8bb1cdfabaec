"""Snapshot of a read: topics, end offsets, objects, lease. A compact value that can be pickled.

`snapshot_opening` opens one for a DataFrame (a stream opens one for each micro-batch). It is pickled to
Spark's planning workers and holds everything that `planning` needs besides the object store: 41 bytes for
each piece of an object.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from ponor_spark.clip import AbortedRange

PIECE: Final = struct.Struct(">qqqqII?")
"""object id, size in bytes, start offset, end offset (of the stream), namespace (number in the snapshot),
bucket index, whether the object holds only this piece.
"""
_END_OFFSET: Final = struct.Struct(">24xq9x")
assert _END_OFFSET.size == PIECE.size


class HeldPiece(NamedTuple):
    """A piece of an object: offsets [start_offset, end_offset) of a stream.

    `is_all`: the object holds nothing else, so its `size_bytes` is the size of these offsets.
    """

    object_id: int
    size_bytes: int
    start_offset: int
    end_offset: int
    namespace: int
    bucket_index: int
    is_all: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease that keeps the objects named at metadata index `index` or later.

    `leased_until_ms` is in cluster time, which was `cluster_time_ms` at the opening. `controllers` are the
    addresses of the cluster that granted it; a lease id is unique only in its cluster.
    """

    lease_id: int
    holder: str
    ttl_ms: int
    index: int
    leased_until_ms: int
    cluster_time_ms: int
    controllers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Kafka offsets [base_offset, end_offset), all committed, lie in a stream at `offset - kafka_shift`.

    `max_timestamp_ms` is the largest timestamp of a closed segment; None if unknown (−1: no record has one).
    """

    stream_id: int
    base_offset: int
    end_offset: int
    kafka_shift: int
    max_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """A partition, readable from objects at [log_start_offset, committed_end_offset).

    `segments` cover this range without a gap, in order. `tail_end_offset` is the broker's end when the
    snapshot was opened (`tail=broker` only), `leader` its address.
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
        """End offset for `latest`: the tail's end if there is one."""
        return max(self.committed_end_offset, self.tail_end_offset or 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All partitions under one lease, as of metadata index `index` (at or above the lease's)."""

    cluster_id: str
    index: int
    lease: Lease
    object_store: str
    partitions: tuple[PartitionSnapshot, ...]
    namespaces: tuple[str, ...] = ()
    pieces: Mapping[int, bytes] = field(default_factory=dict)
    """By stream id: `PIECE` after `PIECE`, contiguous and in offset order."""
    brokers: tuple[str, ...] = ()
    """HOST:PORT of the live brokers in the metadata: for tails if the options name none."""

    @property
    def lease_id(self) -> int:
        """Id of the lease."""
        return self.lease.lease_id

    def pieces_of(self, stream_id: int, start_offset: int, end_offset: int) -> Iterator[HeldPiece]:
        """Return the pieces with stream offsets of [start_offset, end_offset), unclipped, in order."""
        return pieces_within(self.pieces.get(stream_id, b""), start_offset, end_offset)

    def with_tails(self, ends: Mapping[tuple[str, int], int]) -> Snapshot:
        """Return a copy with the brokers' end offsets by (topic, partition), for `tail=broker`."""
        partitions = tuple(
            replace(each, tail_end_offset=ends.get((each.topic, each.partition), each.tail_end_offset))
            for each in self.partitions
        )
        return replace(self, partitions=partitions)


def pieces_within(packed: bytes, start_offset: int, end_offset: int) -> Iterator[HeldPiece]:
    """Return the packed pieces with offsets of [start_offset, end_offset), unclipped, in order."""

    def end_of(number: int) -> int:
        found: int = _END_OFFSET.unpack_from(packed, number * PIECE.size)[0]
        return found

    first = bisect_right(range(len(packed) // PIECE.size), start_offset, key=end_of)
    for piece in map(HeldPiece._make, PIECE.iter_unpack(memoryview(packed)[first * PIECE.size :])):
        if piece.start_offset >= end_offset:
            return
        yield piece
