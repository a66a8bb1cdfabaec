"""Planning of stream object compactions: joins adjacent objects. The store copies pieces that are
large enough.

A server-side copy moves no bytes through this process, but every part except the last must have the
store's minimum size. Smaller pieces are rewritten together with adjacent ones, in whole blocks,
until the part is large enough. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from ponor_runtime.identity import StreamId

from s3stream.compaction.copy_plan import CopiedPart, CopyLimits, CopyPlan, Part, PlannedCopy, RewrittenPart
from s3stream.compaction.plan import (
    OutputKind,
    PlannedOutput,
    WantedBlock,
    encoded_index,
    plan_reads,
    ranges_of,
)
from s3stream.compaction.sources import SourceBlock, SourceIndex, live_blocks, runs_of
from s3stream.errors import CompactionLimitError
from s3stream.objects.format import ENTRY_BYTES, FOOTER_BYTES
from s3stream.ports import StreamState


class _Stretch(NamedTuple):
    """Adjacent blocks of one source."""

    blocks: tuple[SourceBlock, ...]
    size_bytes: int

    @property
    def object_bytes(self) -> int:
        """Bytes that the stretch adds to an object: data and index."""
        return self.size_bytes + ENTRY_BYTES * len(self.blocks)


def plan_stream_objects(
    sources: Sequence[SourceIndex], streams: Mapping[StreamId, StreamState], limits: CopyLimits
) -> CopyPlan:
    """Plan the replacement of these stream objects of one stream by fewer objects.

    Objects with consecutive offsets are joined up to the largest size; a gap in the offsets ends an output.
    Expired objects are dropped, as are expired blocks at the beginning of an object. A commit replaces all
    sources, so objects that cannot be joined are copied too. A plan that would neither reduce the number of
    objects nor drop blocks is empty and `is_settled`.

    Raises:
        SourcesDisagreeError: two sources contain the same offset.
        CompactionLimitError: the plan exceeds a limit; the message names it.
    """
    blocks = live_blocks(sources, streams)
    assert len({block.entry.stream_id for block in blocks}) <= 1, (
        "the sources are objects of more than one stream"
    )
    if len(blocks) > limits.blocks_max:
        raise CompactionLimitError(
            f"the sources hold {len(blocks)} blocks; a plan takes at most {limits.blocks_max}:"
            " plan fewer sources"
        )
    located = tuple(source.object for source in sources)
    groups = [group for run in runs_of(blocks) for group in _groups(run.blocks, limits)]
    if len(groups) >= len(sources) and len(blocks) == sum(len(source.blocks) for source in sources):
        return CopyPlan(located, (), is_settled=True)
    return CopyPlan(located, tuple(_copy(group, limits) for group in groups))


def _groups(blocks: Sequence[SourceBlock], limits: CopyLimits) -> list[list[_Stretch]]:
    """Group the stretches of a run into outputs. A source is never divided."""
    groups: list[list[_Stretch]] = []
    room = 0
    for _, of_source in groupby(blocks, key=_source):
        found = tuple(of_source)
        stretch = _Stretch(found, sum(block.entry.size_bytes for block in found))
        if groups and stretch.object_bytes <= room and len(groups[-1]) < limits.group_objects_max:
            groups[-1].append(stretch)
        else:
            groups.append([stretch])
            room = limits.object_bytes_max - FOOTER_BYTES
        room -= stretch.object_bytes
    return groups


def _copy(group: Sequence[_Stretch], limits: CopyLimits) -> PlannedCopy:
    entries = [block.entry for stretch in group for block in stretch.blocks]
    parts = _Parts(limits)
    for stretch in group:
        parts.add(stretch)
    planned = parts.finish()
    ends_alone = isinstance(planned[-1], CopiedPart)
    output = PlannedOutput(
        OutputKind.STREAM_OBJECT,
        encoded_index(entries),
        sum(entry.size_bytes for entry in entries),
        ranges_of(entries),
        len(planned) + ends_alone,
    )
    return PlannedCopy(output, tuple(planned))


class _Parts:
    """Builds the parts of one output from its stretches in order. Blocks wait in `_waiting` until
    they form a part of legal size.
    """

    def __init__(self, limits: CopyLimits) -> None:
        self._limits = limits
        self._part_bytes = min(limits.part_size_bytes, limits.budget_bytes)
        self._parts: list[Part] = []
        self._waiting: list[SourceBlock] = []
        self._waiting_bytes = 0

    def add(self, stretch: _Stretch) -> None:
        """Copy the stretch, except its first blocks that the preceding part needs to reach the minimum
        size. If the rest is then smaller than that minimum, rewrite it too.
        """
        minimum = self._limits.part_size_bytes_min
        taken = 0
        remaining = stretch.size_bytes
        while taken < len(stretch.blocks):
            is_legal = self._waiting_bytes == 0 or self._waiting_bytes >= minimum
            if remaining >= minimum and is_legal:
                self._rewrite()
                self._copy(stretch.blocks[taken], remaining)
                return
            self._wait(stretch.blocks[taken])
            remaining -= stretch.blocks[taken].entry.size_bytes
            taken += 1

    def finish(self) -> list[Part]:
        """Return all parts."""
        self._rewrite()
        return self._parts

    def _wait(self, block: SourceBlock) -> None:
        size_bytes = block.entry.size_bytes
        if (
            self._waiting_bytes >= self._limits.part_size_bytes_min
            and self._waiting_bytes + size_bytes > self._part_bytes
        ):
            self._rewrite()
        if self._waiting_bytes + size_bytes > self._limits.budget_bytes:
            raise CompactionLimitError(
                f"a block of {size_bytes} bytes does not fit into the budget of"
                f" {self._limits.budget_bytes} bytes together with {self._waiting_bytes} bytes"
                " that are too few for a part; raise the budget"
            )
        self._waiting.append(block)
        self._waiting_bytes += size_bytes

    def _rewrite(self) -> None:
        if not self._waiting:
            return
        wanted: list[WantedBlock] = []
        place = 0
        for block in self._waiting:
            wanted.append(WantedBlock(block.source, block.entry, place))
            place += block.entry.size_bytes
        self._parts.append(RewrittenPart(plan_reads(wanted, self._limits.read_bytes_max), place))
        self._waiting, self._waiting_bytes = [], 0

    def _copy(self, first: SourceBlock, size_bytes: int) -> None:
        """Divide the rest of a stretch, from block `first` on, into copies of about equal size."""
        count = -(-size_bytes // self._limits.copy_bytes_max)
        at = first.entry.position
        for number in range(count):
            part_bytes = size_bytes * (number + 1) // count - size_bytes * number // count
            self._parts.append(CopiedPart(first.source, at, part_bytes))
            at += part_bytes


def _source(block: SourceBlock) -> int:
    return block.source
