"""Plan of a compaction of stream objects: the ranges that the store copies, and those that pass through memory. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from s3stream.compaction.plan import MIB, PlannedOutput, PlannedRead
from s3stream.compaction.sources import ObjectLocation

OBJECT_BYTES_MAX: int = 1024 * 1024 * MIB
"""No limit may ask for more: parts of a size that a store copies in one go would be too many. S3 itself takes 5 TiB."""


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Bounds of a plan for the stream objects of one stream."""

    budget_bytes: int
    """Most bytes of blocks in memory at a time."""
    object_bytes_max: int = 4096 * MIB
    """Largest output; each is as large as this allows."""
    part_size_bytes_min: int = 5 * MIB
    """The store's minimum for every part but the last: a smaller piece cannot be copied by the store alone."""
    part_size_bytes: int = 16 * MIB
    """Wanted size of a part that passes through memory; less where the budget is."""
    copy_bytes_max: int = 256 * MIB
    """Most bytes of one server-side copy: it must be done before the request times out."""
    read_bytes_max: int = 4 * MIB
    """Most bytes of one read, unless a single block is larger. Reads of 16 MiB cost three times the CPU: each is fresh memory, page by page."""
    group_objects_max: int = 2_000
    """Sources of one output."""
    blocks_max: int = 1024 * 1024
    """Index entries of one plan; each costs half a kilobyte of memory while it is planned."""

    def __post_init__(self) -> None:
        assert 1 <= self.part_size_bytes_min <= min(self.part_size_bytes, self.budget_bytes)
        assert self.copy_bytes_max >= 2 * self.part_size_bytes_min, "half of a copy is a legal part"
        assert 1 <= self.object_bytes_max <= OBJECT_BYTES_MAX
        assert 2 <= self.group_objects_max <= 2_000, "two parts for each, and the copies, within 10,000"


class CopiedPart(NamedTuple):
    """Bytes [start, start + size_bytes) of a source's data, copied by the store."""

    source: int
    start: int
    size_bytes: int


class RewrittenPart(NamedTuple):
    """Whole blocks that are read into memory one after the other, checked, and uploaded."""

    reads: tuple[PlannedRead, ...]
    size_bytes: int


Part: TypeAlias = CopiedPart | RewrittenPart


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """An output and its parts in order. Index and footer follow the last part if that is rewritten, or are a part of their own."""

    output: PlannedOutput
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """From adjacent stream objects to larger ones. `is_settled`: nothing is to be done and nothing to be committed."""

    sources: tuple[ObjectLocation, ...]
    copies: tuple[PlannedCopy, ...]
    is_settled: bool = False

    @property
    def outputs(self) -> tuple[PlannedOutput, ...]:
        """What is written, in offset order."""
        return tuple(copy.output for copy in self.copies)

    @property
    def held_bytes_max(self) -> int:
        """What the largest rewritten part holds; they are rewritten one at a time."""
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
        """Bytes of blocks that pass through memory or are copied by the store."""
        return sum(copy.output.data_bytes for copy in self.copies)

    @property
    def written_bytes(self) -> int:
        """Bytes of all outputs, indexes included."""
        return sum(copy.output.size_bytes for copy in self.copies)
