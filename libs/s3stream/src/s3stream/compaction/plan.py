"""Plan of a stream set object compaction: reads, memory layout, and outputs.

`planning.py` creates plans, `executor.py` executes them. An iteration reads blocks into one buffer
in the order of the outputs, so each upload is a slice of that buffer. The values are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from crc32c import crc32c
from ponor_runtime.identity import ObjectId

from s3stream.compaction.sources import ObjectLocation
from s3stream.objects.format import BLOCK_BYTES_MAX, ENTRY_BYTES, FOOTER_BYTES, BlockEntry, Footer
from s3stream.objects.joining import joined_blocks
from s3stream.ports import StreamRange, UploadedObject
from s3stream.settings import COMMIT_OBJECTS_MAX

PARTS_MAX: Final = 10_000
"""Parts of one multipart upload: S3's limit. No supported store has a lower one."""

MIB: Final = 1024 * 1024

READ_BYTES_MAX: Final = 4 * MIB
"""Bytes of a read that allocates memory. Reads of 16 MiB cost three times the CPU, because each
faults in fresh memory."""

IN_PLACE_READ_BYTES_MAX: Final = 16 * MIB
"""Maximum size of a read in place. Such a read allocates nothing, and a larger one costs less per byte."""


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Limits of a plan. Byte limits count blocks only; `blocks_max` bounds the indexes of sources
    and outputs.
    """

    budget_bytes: int
    """Bytes of blocks in memory at a time."""
    split_size_bytes: int = 8 * MIB
    """A run of at least this size becomes a stream object."""
    part_size_bytes_min: int = 5 * MIB
    """The store's minimum size of every part except the last; 5 MiB on S3."""
    part_size_bytes: int = 16 * MIB
    """Target size of a part. An object with no more data than this is a single put."""
    read_bytes_max: int = READ_BYTES_MAX
    """Bytes of one read, unless a single block is larger."""
    streams_max: int = 20_000
    """Streams of one plan."""
    objects_max: int = COMMIT_OBJECTS_MAX
    """Outputs of one plan; one commit lists all of them."""
    blocks_max: int = 128 * 1024
    """Blocks of one plan; each takes 512 bytes of memory."""
    block_bytes_max: int = BLOCK_BYTES_MAX
    """Small adjacent blocks of a stream are joined up to this size."""

    def __post_init__(self) -> None:
        assert 1 <= self.part_size_bytes_min <= self.part_size_bytes, (
            "part_size_bytes is below part_size_bytes_min"
        )
        assert min(self.budget_bytes, self.split_size_bytes, self.read_bytes_max) >= 1
        assert min(self.streams_max, self.objects_max, self.blocks_max, self.block_bytes_max) >= 1

    @property
    def joined_bytes_max(self) -> int:
        """`block_bytes_max`, reduced so that the budget can hold a joined block together with a
        part that is still too small for upload.
        """
        return min(self.block_bytes_max, self.budget_bytes - self.part_size_bytes_min + 1)


class OutputKind(Enum):
    """Kind of an output in the metadata. Both kinds have the same format."""

    STREAM_SET_OBJECT = "sso"
    STREAM_OBJECT = "so"


class PlacedBlock(NamedTuple):
    """The index entry of a block in its source, and the block's place in the iteration's buffer."""

    entry: BlockEntry
    place: int


class PlannedRead(NamedTuple):
    """One GET: adjacent blocks of one source."""

    source: int
    position: int
    size_bytes: int
    blocks: tuple[PlacedBlock, ...]


class PlannedPart(NamedTuple):
    """Bytes [place, place + size_bytes) of the iteration's buffer, uploaded as a part of one
    output. Index and footer follow the last part.

    `number` counts from 1, as in S3. An output with a single part is written with one put.
    """

    output: int
    number: int
    place: int
    size_bytes: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Iteration:
    """One filling of the buffer. The first `carried_bytes` remain from the previous iteration,
    because they were too few for a part.
    """

    carried_bytes: int
    reads: tuple[PlannedRead, ...]
    parts: tuple[PlannedPart, ...]

    @property
    def read_bytes(self) -> int:
        """Bytes that the iteration reads."""
        return sum(read.size_bytes for read in self.reads)

    @property
    def held_bytes(self) -> int:
        """Bytes that the iteration holds."""
        return self.carried_bytes + self.read_bytes


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    """An object to be written. Its index is computed before any data is read."""

    kind: OutputKind
    index: bytes
    data_bytes: int
    ranges: tuple[StreamRange, ...]
    part_count: int

    @property
    def size_bytes(self) -> int:
        """Size including index and footer."""
        return self.data_bytes + len(self.index) + FOOTER_BYTES

    @property
    def is_multipart(self) -> bool:
        """Whether the output needs a multipart upload."""
        return self.part_count > 1

    def end(self, object_id: ObjectId) -> bytes:
        """Encode index and footer for an object id."""
        count = len(self.index) // ENTRY_BYTES
        return (
            self.index
            + Footer(object_id, self.data_bytes, len(self.index), count, crc32c(self.index)).encode()
        )


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Plan from sources to outputs: first the stream set object, if there is one, then stream
    objects by (stream, offset).

    If `is_settled`, the sources already equal the outputs, so there is nothing to write or commit.
    A plan that is not settled may have no outputs, because everything in the sources is expired; it
    still needs a commit.
    """

    sources: tuple[ObjectLocation, ...]
    outputs: tuple[PlannedOutput, ...]
    iterations: tuple[Iteration, ...]
    is_settled: bool = False

    @property
    def held_bytes_max(self) -> int:
        """Bytes held by the largest iteration."""
        return max((iteration.held_bytes for iteration in self.iterations), default=0)

    @property
    def read_bytes(self) -> int:
        """Bytes of blocks that are copied."""
        return sum(iteration.read_bytes for iteration in self.iterations)

    @property
    def written_bytes(self) -> int:
        """Bytes of all outputs, including indexes."""
        return sum(output.size_bytes for output in self.outputs)


def encoded_index(entries: Iterable[BlockEntry], block_bytes_max: int = 1) -> bytes:
    """Encode the index of an object that contains only these blocks. Small adjacent blocks are
    joined up to `block_bytes_max`.
    """
    return b"".join(entry.encode() for entry in joined_blocks(entries, block_bytes_max))


def ranges_of(entries: Iterable[BlockEntry]) -> tuple[StreamRange, ...]:
    """Return the ranges that sorted entries cover. A range may span epochs; it then has the last epoch."""
    ranges: list[StreamRange] = []
    for entry in entries:
        start = entry.start_offset
        if ranges and (ranges[-1].stream_id, ranges[-1].end_offset) == (entry.stream_id, start):
            start = ranges.pop().start_offset
        ranges.append(StreamRange(entry.stream_id, entry.epoch, start, entry.end_offset))
    return tuple(ranges)


class WantedBlock(NamedTuple):
    """A block of a source, and its place in memory."""

    source: int
    entry: BlockEntry
    place: int


def plan_reads(blocks: Iterable[WantedBlock], read_bytes_max: int) -> tuple[PlannedRead, ...]:
    """Group blocks into reads, by (source, position). Unwanted bytes between blocks are never read,
    because they would need memory.

    Args:
        blocks: in any order.
        read_bytes_max: limit of one read; a larger block is read alone.
    """
    reads: list[PlannedRead] = []
    gathered: list[WantedBlock] = []
    gathered_bytes = 0
    for block in sorted(blocks, key=_source_and_position):
        if gathered and not (
            _touches(gathered[-1], block) and gathered_bytes + block.entry.size_bytes <= read_bytes_max
        ):
            reads.append(_read(gathered, gathered_bytes))
            gathered, gathered_bytes = [], 0
        gathered.append(block)
        gathered_bytes += block.entry.size_bytes
    if gathered:
        reads.append(_read(gathered, gathered_bytes))
    return tuple(reads)


def _read(blocks: Sequence[WantedBlock], size_bytes: int) -> PlannedRead:
    first = blocks[0]
    placed = tuple(PlacedBlock(block.entry, block.place) for block in blocks)
    return PlannedRead(first.source, first.entry.position, size_bytes, placed)


def _touches(a: WantedBlock, b: WantedBlock) -> bool:
    return a.source == b.source and a.entry.position + a.entry.size_bytes == b.entry.position


def _source_and_position(block: WantedBlock) -> tuple[int, int]:
    return block.source, block.entry.position


@dataclass(frozen=True, slots=True)
class Target:
    """Id and key of an output."""

    planned: PlannedOutput
    object_id: ObjectId
    key: str

    def end(self) -> bytes:
        """Return index and footer."""
        return self.planned.end(self.object_id)

    def uploaded(self) -> UploadedObject:
        """Return the output as a commit needs it."""
        return UploadedObject(self.object_id, self.planned.size_bytes, self.planned.ranges)
