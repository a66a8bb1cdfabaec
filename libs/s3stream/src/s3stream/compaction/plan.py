"""Plan of a stream set object compaction: when each block is read, its place in memory, and what is written from there.

Pure values: `planning.py` creates them, `executor.py` executes them. An iteration reads blocks into one buffer in the
order of the outputs, so each upload is a slice of that buffer.
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
"""Of one multipart upload; S3's bound, and no store that we know has a lower one."""

MIB: Final = 1024 * 1024

READ_BYTES_MAX: Final = 4 * MIB
"""Of one read that takes memory of its own: 16 MiB cost three times the CPU, because each is fresh memory, page by page."""

IN_PLACE_READ_BYTES_MAX: Final = 16 * MIB
"""Of one that does not, and is the cheaper the larger it is."""


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Bounds of a plan. Bytes held are those of blocks; indexes of sources and outputs come on top, bounded by `blocks_max`."""

    budget_bytes: int
    """Most bytes of blocks in memory at a time."""
    split_size_bytes: int = 8 * MIB
    """From this size on a run is a stream object."""
    part_size_bytes_min: int = 5 * MIB
    """The store's minimum for every part but the last; S3's is 5 MiB."""
    part_size_bytes: int = 16 * MIB
    """Wanted size of a part; an object with no more data than this is one put."""
    read_bytes_max: int = READ_BYTES_MAX
    """Most bytes of one read, unless a single block is larger."""
    streams_max: int = 20_000
    """Streams of one plan."""
    objects_max: int = COMMIT_OBJECTS_MAX
    """Outputs of one plan: one commit names them all."""
    blocks_max: int = 128 * 1024
    """Blocks of one plan; each costs half a kilobyte of memory."""
    block_bytes_max: int = BLOCK_BYTES_MAX
    """Small blocks of a stream that come to lie side by side are joined up to this size."""

    def __post_init__(self) -> None:
        assert 1 <= self.part_size_bytes_min <= self.part_size_bytes, "a wanted part is a legal one"
        assert min(self.budget_bytes, self.split_size_bytes, self.read_bytes_max) >= 1
        assert min(self.streams_max, self.objects_max, self.blocks_max, self.block_bytes_max) >= 1

    @property
    def joined_bytes_max(self) -> int:
        """The same within the budget: the next plan has to hold a block beside a part that is too small to be uploaded."""
        return min(self.block_bytes_max, self.budget_bytes - self.part_size_bytes_min + 1)


class OutputKind(Enum):
    """What an output is to the metadata; the format is the same."""

    STREAM_SET_OBJECT = "sso"
    STREAM_OBJECT = "so"


class PlacedBlock(NamedTuple):
    """A block as its source has it, and its place in the iteration's buffer."""

    entry: BlockEntry
    place: int


class PlannedRead(NamedTuple):
    """One call: adjacent blocks of one source."""

    source: int
    position: int
    size_bytes: int
    blocks: tuple[PlacedBlock, ...]


class PlannedPart(NamedTuple):
    """Bytes [place, place + size_bytes) of the iteration's buffer, for one output. Index and footer follow the last part of it.

    `number` counts from 1, as in S3. The only part of an output is one put.
    """

    output: int
    number: int
    place: int
    size_bytes: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Iteration:
    """What is in memory at a time. `carried_bytes` lie at the beginning of the buffer since the iteration before: too few for a part."""

    carried_bytes: int
    reads: tuple[PlannedRead, ...]
    parts: tuple[PlannedPart, ...]

    @property
    def read_bytes(self) -> int:
        """What it reads."""
        return sum(read.size_bytes for read in self.reads)

    @property
    def held_bytes(self) -> int:
        """What it holds."""
        return self.carried_bytes + self.read_bytes


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    """An object to be written: its index is known before a byte of it was read."""

    kind: OutputKind
    index: bytes
    data_bytes: int
    ranges: tuple[StreamRange, ...]
    part_count: int

    @property
    def size_bytes(self) -> int:
        """All of it."""
        return self.data_bytes + len(self.index) + FOOTER_BYTES

    @property
    def is_multipart(self) -> bool:
        """Whether it is more than one put."""
        return self.part_count > 1

    def end(self, object_id: ObjectId) -> bytes:
        """Index and footer under an object id."""
        count = len(self.index) // ENTRY_BYTES
        return (
            self.index
            + Footer(object_id, self.data_bytes, len(self.index), count, crc32c(self.index)).encode()
        )


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """From sources to outputs: the stream set object first, if there is one, then stream objects by (stream, offset).

    `is_settled`: these sources are what this plan would write; nothing is to be done and nothing to be committed. A plan that is not settled and has no
    outputs is a commit all the same: everything in the sources is expired.
    """

    sources: tuple[ObjectLocation, ...]
    outputs: tuple[PlannedOutput, ...]
    iterations: tuple[Iteration, ...]
    is_settled: bool = False

    @property
    def held_bytes_max(self) -> int:
        """What the largest iteration holds."""
        return max((iteration.held_bytes for iteration in self.iterations), default=0)

    @property
    def read_bytes(self) -> int:
        """Bytes of blocks that are copied."""
        return sum(iteration.read_bytes for iteration in self.iterations)

    @property
    def written_bytes(self) -> int:
        """Bytes of all outputs, indexes included."""
        return sum(output.size_bytes for output in self.outputs)


def encoded_index(entries: Iterable[BlockEntry], block_bytes_max: int = 1) -> bytes:
    """Entries as they stand in an object that holds just these blocks, one after the other; small ones joined up to a size."""
    return b"".join(entry.encode() for entry in joined_blocks(entries, block_bytes_max))


def ranges_of(entries: Iterable[BlockEntry]) -> tuple[StreamRange, ...]:
    """What entries in order cover. A range may reach over epochs; it is told under the last of them, as the stream's end was."""
    ranges: list[StreamRange] = []
    for entry in entries:
        start = entry.start_offset
        if ranges and (ranges[-1].stream_id, ranges[-1].end_offset) == (entry.stream_id, start):
            start = ranges.pop().start_offset
        ranges.append(StreamRange(entry.stream_id, entry.epoch, start, entry.end_offset))
    return tuple(ranges)


class WantedBlock(NamedTuple):
    """A block of a source, and where it is to lie in memory."""

    source: int
    entry: BlockEntry
    place: int


def plan_reads(blocks: Iterable[WantedBlock], read_bytes_max: int) -> tuple[PlannedRead, ...]:
    """Reads by (source, position). Unwanted bytes are never read, because they would need memory.

    Args:
        blocks: in any order.
        read_bytes_max: of one read; a larger block is read alone.
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
    """Where an output goes."""

    planned: PlannedOutput
    object_id: ObjectId
    key: str

    def end(self) -> bytes:
        """Index and footer."""
        return self.planned.end(self.object_id)

    def uploaded(self) -> UploadedObject:
        """What a commit says of it."""
        return UploadedObject(self.object_id, self.planned.size_bytes, self.planned.ranges)
