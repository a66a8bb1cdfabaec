"""What one Spark task reads: runs of blocks and small whole objects, each one GET, or the tail of one partition. Values, picklable and compact.

What lives here: the shapes that planning makes and executors read. No pyspark: the source wraps a split into an `InputPartition`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from s3stream.objects.format import ENTRY, BlockEntry

from ponor_spark.clip import AbortedRange, Clip


@dataclass(frozen=True, slots=True)
class ObjectRun:
    """Blocks of one stream that lie side by side in an object: bytes [position, position + size_bytes), at most 4 MiB (or one larger block).

    `entries` are the encoded index entries of these blocks, 64 bytes each, in order; they carry the checksums. Kafka offset = stream offset + `kafka_shift`.
    Blocks may hold offsets outside of `clip`, and records that belong to no segment: whoever decodes leaves out what `clip` does not name.
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
        """The entries, decoded; `position` in them is that of the object."""
        return map(BlockEntry._make, ENTRY.iter_unpack(self.entries))


@dataclass(frozen=True, slots=True)
class WholeObject:
    """An object of at most 16 MiB that holds nothing but this part of one stream. Nobody has read its index: whoever reads the object does, from the same bytes (`stream_blocks.run_of`)."""

    key: str
    bucket_index: int
    size_bytes: int
    stream_id: int
    kafka_shift: int
    clip: Clip
    aborted: tuple[AbortedRange, ...] = ()

    @property
    def position(self) -> int:
        """Where to read from: the beginning."""
        return 0

    @property
    def stream_offsets(self) -> tuple[int, int]:
        """[from, to) of the stream: what the metadata say that the object holds."""
        return self.clip.start_offset - self.kafka_shift, self.clip.end_offset - self.kafka_shift


@dataclass(frozen=True, slots=True)
class Split:
    """One task's share: of one or of several small partitions, in (topic, partition, offset) order.

    `time_range_ms` [from, to) is what filters on `timestamp` leave (rows outside may be left out, Spark checks again); `lease_id` names the lease in errors.
    """

    runs: tuple[ObjectRun | WholeObject, ...]
    size_bytes: int
    object_store: str
    lease_id: int
    time_range_ms: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class TailSplit:
    """Offsets that no committed object holds yet: `clip` is to be fetched from a broker. `brokers` begins with the partition's leader."""

    clip: Clip
    topic_id: bytes
    brokers: tuple[str, ...]
    lease_id: int
    read_committed: bool = False
    time_range_ms: tuple[int, int] | None = None
