"""Combines adjacent wanted blocks of a source into few reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from s3stream.compaction.plan import PlacedBlock, PlannedRead
from s3stream.objects.format import BlockEntry


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
