"""Plan of a stream object compaction: the ranges that the store copies, and those that are
rewritten through memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from s3stream.compaction.plan import MIB, PlannedOutput, PlannedRead
from s3stream.compaction.sources import ObjectLocation

OBJECT_BYTES_MAX: int = 1024 * 1024 * MIB
"""Upper bound of `object_bytes_max`. Larger objects would need too many parts of a size that a
store can copy in one call. S3 itself allows 5 TiB."""


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Limits of a plan for the stream objects of one stream."""

    budget_bytes: int
    """Bytes of blocks in memory at a time."""
    object_bytes_max: int = 4096 * MIB
    """Largest output. Sources are joined until the next one would exceed it."""
    part_size_bytes_min: int = 5 * MIB
    """The store's minimum size of every part except the last. A smaller piece cannot be copied
    within the store."""
    part_size_bytes: int = 16 * MIB
    """Target size of a rewritten part; smaller if the budget is smaller."""
    copy_bytes_max: int = 256 * MIB
    """Bytes of one server-side copy, which must finish before the request times out."""
    read_bytes_max: int = 4 * MIB
    """Bytes of one read, unless a single block is larger. Reads of 16 MiB cost three times the CPU,
    because each faults in fresh memory."""
    group_objects_max: int = 2_000
    """Sources of one output."""
    blocks_max: int = 1024 * 1024
    """Index entries of one plan; each takes 512 bytes of memory during planning."""

    def __post_init__(self) -> None:
        assert 1 <= self.part_size_bytes_min <= min(self.part_size_bytes, self.budget_bytes)
        assert self.copy_bytes_max >= 2 * self.part_size_bytes_min, (
            "copy_bytes_max must be at least twice part_size_bytes_min"
        )
        assert 1 <= self.object_bytes_max <= OBJECT_BYTES_MAX
        assert 2 <= self.group_objects_max <= 2_000, (
            "a group of more objects could need more than the 10,000 parts of a multipart upload"
        )


class CopiedPart(NamedTuple):
    """Data bytes [start, start + size_bytes) of a source, copied within the store."""

    source: int
    start: int
    size_bytes: int


class RewrittenPart(NamedTuple):
    """Whole blocks that are read into memory in order, verified and uploaded as one part."""

    reads: tuple[PlannedRead, ...]
    size_bytes: int


Part: TypeAlias = CopiedPart | RewrittenPart


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """An output and its parts in order. Index and footer are appended to the last part if it is
    rewritten; otherwise they are a separate part.
    """

    output: PlannedOutput
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Plan that replaces adjacent stream objects with larger ones. If `is_settled`, there is
    nothing to write or commit.
    """

    sources: tuple[ObjectLocation, ...]
    copies: tuple[PlannedCopy, ...]
    is_settled: bool = False

    @property
    def outputs(self) -> tuple[PlannedOutput, ...]:
        """The planned outputs in offset order."""
        return tuple(copy.output for copy in self.copies)

    @property
    def held_bytes_max(self) -> int:
        """Size of the largest rewritten part; parts are rewritten one at a time."""
        return max(
            (
                part.size_bytes
                for copy in self.copies
                for part in copy.parts
                if isinstance(part, RewrittenPart)
            ),
            default=0,
        )

    @property
    def read_bytes(self) -> int:
        """Bytes of blocks that are rewritten or copied within the store."""
        return sum(copy.output.data_bytes for copy in self.copies)

    @property
    def written_bytes(self) -> int:
        """Bytes of all outputs, including indexes."""
        return sum(copy.output.size_bytes for copy in self.copies)
