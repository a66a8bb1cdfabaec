"""Input of one Spark task: runs of blocks and small whole objects, one GET each, or the tail of one
partition.

Compact values that can be pickled. No pyspark: the source wraps a split into an `InputPartition`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from s3stream.objects.format import ENTRY, BlockEntry

from ponor_spark.clip import AbortedRange, Clip


@dataclass(frozen=True, slots=True)
class ObjectRun:
    """Adjacent blocks of one stream in an object: bytes [position, position + size_bytes), at most 4 MiB (or
    one larger block).

    `entries` are the encoded index entries of these blocks, 64 bytes each, in order; they contain the
    checksums. Kafka offset = stream offset + `kafka_shift`. Blocks may hold offsets outside `clip`, and
    records that belong to no segment: the decoder drops them.
    """

    key: str
    bucket_index: int
    position: int
    size_bytes: int
    entries: bytes
    kafka_shift: int
    clip: Clip
    aborted: tuple[AbortedRange, ...] = ()

    def blocks(self) -> Iterator[BlockEntry]:
        """The decoded entries; their `position` is relative to the object."""
        return map(BlockEntry._make, ENTRY.iter_unpack(self.entries))


@dataclass(frozen=True, slots=True)
class WholeObject:
    """An object of at most 16 MiB that holds only this part of one stream.

    The executor reads its index from the same bytes (`stream_blocks.run_of`).
    """

    key: str
    bucket_index: int
    size_bytes: int
    stream_id: int
    kafka_shift: int
    clip: Clip
    aborted: tuple[AbortedRange, ...] = ()

    @property
    def position(self) -> int:
        """Position of the read: the start of the object."""
        return 0

    @property
    def stream_offsets(self) -> tuple[int, int]:
        """Stream offsets [from, to) that the object holds by the metadata."""
        return self.clip.start_offset - self.kafka_shift, self.clip.end_offset - self.kafka_shift


@dataclass(frozen=True, slots=True)
class Split:
    """Input of one task: one or several small partitions, in (topic, partition, offset) order.

    `time_range_ms` [from, to) comes from filters on `timestamp` (rows outside may be dropped, Spark checks
    again); `lease_id` is for errors.
    """

    runs: tuple[ObjectRun | WholeObject, ...]
    size_bytes: int
    object_store: str
    lease_id: int
    time_range_ms: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class TailSplit:
    """Offsets that no committed object holds yet: `clip` is fetched from a broker.

    `brokers` begins with the partition's leader.
    """

    clip: Clip
    topic_id: bytes
    brokers: tuple[str, ...]
    lease_id: int
    read_committed: bool = False
    time_range_ms: tuple[int, int] | None = None
