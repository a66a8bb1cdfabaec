"""Division of a compaction into iterations that fit into the budget, with their memory layout and
multipart uploads.

An iteration's buffer contains, in order: the bytes of the stream set object that the previous
iteration carried over, that object's next blocks, then one stream object after the other. Every
part is therefore a slice of the buffer. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from s3stream.compaction.plan import (
    PARTS_MAX,
    Iteration,
    OutputKind,
    PlanLimits,
    PlannedOutput,
    PlannedPart,
    WantedBlock,
    encoded_index,
    plan_reads,
    ranges_of,
)
from s3stream.compaction.sources import SourceBlock
from s3stream.errors import CompactionLimitError
from s3stream.objects.format import BlockEntry


@dataclass(slots=True)
class _Open:
    """The iteration that is being filled."""

    held_bytes: int
    shared: list[SourceBlock] = field(default_factory=list)
    stream_objects: list[tuple[int, list[SourceBlock]]] = field(default_factory=list)
    """Output number and blocks."""


class IterationCutter:
    """Builds iterations from runs in (stream, offset) order."""

    def __init__(self, limits: PlanLimits, *, shared_blocks: int) -> None:
        self._limits = limits
        self._shared_missing = shared_blocks
        """Remaining blocks of the stream set object; the last one completes its upload."""
        self._has_shared = shared_blocks > 0
        self._shared_entries: list[BlockEntry] = []
        self._shared_parts = 0
        self._stream_objects: list[PlannedOutput] = []
        self._carried_bytes = 0
        self._open = _Open(held_bytes=0)
        self._iterations: list[Iteration] = []

    def add_shared(self, blocks: Sequence[SourceBlock]) -> None:
        """Add a run that belongs to the stream set object."""
        for block in blocks:
            if not self._fits(block):
                self._close()
            self._open.shared.append(block)
            self._open.held_bytes += block.entry.size_bytes
            self._shared_entries.append(block.entry)
            self._shared_missing -= 1

    def add_stream_object(self, blocks: Sequence[SourceBlock]) -> None:
        """Add a run that becomes a stream object, or several if iterations end within it."""
        gathered: list[SourceBlock] = []
        for block in blocks:
            if not self._fits(block):
                self._end_stream_object(gathered)
                gathered = []
                self._close()
            gathered.append(block)
            self._open.held_bytes += block.entry.size_bytes
        self._end_stream_object(gathered)

    def finish(self) -> tuple[tuple[PlannedOutput, ...], tuple[Iteration, ...]]:
        """Return all outputs and iterations.

        Raises:
            CompactionLimitError: an output would exceed the number of parts of a multipart upload.
        """
        assert self._shared_missing == 0, "fewer shared blocks were added than were announced"
        if self._open.shared or self._open.stream_objects:
            self._close()
        assert self._carried_bytes == 0
        outputs = list(self._stream_objects)
        if self._has_shared:
            kind = OutputKind.STREAM_SET_OBJECT
            outputs.insert(0, self._output(kind, self._shared_entries, self._shared_parts))
        parts = max((output.part_count for output in outputs), default=0)
        if parts > PARTS_MAX:
            raise CompactionLimitError(
                f"an object would have {parts} parts, but a multipart upload takes at most"
                f" {PARTS_MAX}; plan fewer sources or larger parts"
            )
        return tuple(outputs), tuple(self._iterations)

    def _output(self, kind: OutputKind, entries: Sequence[BlockEntry], part_count: int) -> PlannedOutput:
        data_bytes = sum(entry.size_bytes for entry in entries)
        index = encoded_index(entries, self._limits.joined_bytes_max)
        return PlannedOutput(kind, index, data_bytes, ranges_of(entries), part_count)

    def _fits(self, block: SourceBlock) -> bool:
        return self._open.held_bytes + block.entry.size_bytes <= self._limits.budget_bytes

    def _end_stream_object(self, blocks: list[SourceBlock]) -> None:
        if not blocks:
            return
        data_bytes = _total(blocks)
        part_count = -(-data_bytes // self._limits.part_size_bytes)
        entries = [block.entry for block in blocks]
        number = len(self._stream_objects) + self._has_shared
        self._stream_objects.append(self._output(OutputKind.STREAM_OBJECT, entries, part_count))
        self._open.stream_objects.append((number, blocks))

    def _close(self) -> None:
        """End the iteration: place its blocks and plan its parts."""
        ended = self._open
        wanted: list[WantedBlock] = []
        place = _lay_out(ended.shared, self._carried_bytes, wanted)
        parts, carried_bytes = self._shared_parts_of(place)
        for number, blocks in ended.stream_objects:
            start, place = place, _lay_out(blocks, place, wanted)
            parts.extend(self._stream_object_parts(number, start, place - start))
        reads = plan_reads(wanted, self._limits.read_bytes_max)
        self._iterations.append(Iteration(self._carried_bytes, reads, tuple(parts)))
        self._carried_bytes = carried_bytes
        self._open = _Open(held_bytes=carried_bytes)

    def _shared_parts_of(self, pending_bytes: int) -> tuple[list[PlannedPart], int]:
        """Plan the parts of the stream set object; its `pending_bytes` are at the beginning of the buffer.
        Also return the bytes to carry over: all of them if they are too few for a part, otherwise 0.
        """
        is_complete = self._shared_missing == 0
        if not pending_bytes or (pending_bytes < self._limits.part_size_bytes_min and not is_complete):
            return [], pending_bytes
        parts: list[PlannedPart] = []
        place = 0
        for size_bytes in self._part_sizes(pending_bytes, is_complete=is_complete):
            self._shared_parts += 1
            place += size_bytes
            is_last = is_complete and place == pending_bytes
            parts.append(PlannedPart(0, self._shared_parts, place - size_bytes, size_bytes, is_last))
        return parts, 0

    def _part_sizes(self, pending_bytes: int, *, is_complete: bool) -> list[int]:
        """Divide bytes into parts of the target size. A remainder is a separate part only at the
        end of the object; elsewhere it enlarges the previous part.
        """
        wanted = self._limits.part_size_bytes
        whole, rest = divmod(pending_bytes, wanted)
        sizes = [wanted] * whole
        if rest and (is_complete or not sizes):
            sizes.append(rest)
        elif rest:
            sizes[-1] += rest
        return sizes

    def _stream_object_parts(self, number: int, start: int, data_bytes: int) -> list[PlannedPart]:
        sizes = self._part_sizes(data_bytes, is_complete=True)
        return [
            PlannedPart(number, at + 1, start + at * self._limits.part_size_bytes, size, at == len(sizes) - 1)
            for at, size in enumerate(sizes)
        ]


def _lay_out(blocks: Sequence[SourceBlock], place: int, wanted: list[WantedBlock]) -> int:
    """Assign places to blocks from `place` on; return the place after the last one."""
    for block in blocks:
        wanted.append(WantedBlock(block.source, block.entry, place))
        place += block.entry.size_bytes
    return place


def _total(blocks: Sequence[SourceBlock]) -> int:
    return sum(block.entry.size_bytes for block in blocks)
