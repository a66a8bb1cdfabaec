"""Pack planned blocks into splits: how many, where they are cut, and which blocks are fetched together. No
I/O.

A block, or a small object whose index was not read, goes to one split as a whole. Only if `minPartitions` is
larger than the number of blocks do several splits read the same block. The size of every split differs from
the average split size by less than half of the average, or by at most one block if a block is larger than
that. Adjacent blocks are fetched by one ranged GET.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from s3stream.objects.format import ENTRY_BYTES

from ponor_spark.clip import AbortedRange, Clip
from ponor_spark.options import Options
from ponor_spark.snapshot import Snapshot
from ponor_spark.split import ObjectRun, Split, WholeObject

RUN_BYTES_MAX: Final = 4 << 20
"""Maximum bytes of one GET of blocks, unless a single block is larger.

From 1 MiB on, CPU per byte does not improve, and parallel requests hide latency better than larger ones.
"""
WHOLE_BYTES_MAX: Final = 16 << 20
"""Maximum size of an object that one GET reads whole; the index of a larger object is read first
(docs/design/spark.md#planning).
"""

_PLACE: Final = struct.Struct(">40xQI12x")
"""Position and size in an index entry, which is all that packing needs."""
assert _PLACE.size == ENTRY_BYTES


class PlannedBlocks(NamedTuple):
    """Index entries of blocks of one stream in one object, in order; filters may leave gaps."""

    key: str
    bucket_index: int
    kafka_shift: int
    clip: Clip
    aborted: tuple[AbortedRange, ...]
    entries: bytes

    def places(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Return position and size of the blocks [first, last)."""
        return _PLACE.iter_unpack(memoryview(self.entries)[first * ENTRY_BYTES : last * ENTRY_BYTES])


Planned = PlannedBlocks | WholeObject


class _Cut(NamedTuple):
    """The part of one planned element that goes to one split: its blocks [first, last). A whole object counts
    as one block.
    """

    planned: Planned
    first: int
    last: int
    size_bytes: int


def split_count(total_bytes: int, options: Options) -> int:
    """Return the number of splits: the fewest that `splitBytes` allows, and at least `minPartitions`."""
    return max(-(-total_bytes // options.split_bytes), options.min_partitions or 1)


def to_be_cut(planned: Sequence[Planned], options: Options) -> list[int]:
    """Return the positions in `planned` of the `WholeObject`s that are too large for splits of equal size.
    The caller must read their indexes, so that they can be cut between blocks.

    These are the objects larger than half of the average split size, or all objects if there are fewer blocks
    and whole objects than splits. The first rule returns fewer than two objects per split, the second fewer
    objects than splits, so the number of index reads is bounded.
    """
    sizes = [list(_sizes(each)) for each in planned]
    total_bytes = sum(map(sum, sizes))
    count = split_count(total_bytes, options)
    if count == 1:
        return []
    too_few = sum(map(len, sizes)) < count
    return [
        number
        for number, each in enumerate(planned)
        if isinstance(each, WholeObject) and (too_few or each.size_bytes * 2 * count > total_bytes)
    ]


def pack(
    planned: Sequence[Planned],
    snapshot: Snapshot,
    options: Options,
    time_range_ms: tuple[int, int] | None,
    *,
    shares_blocks: bool = True,
) -> list[Split]:
    """Pack into splits of at most about `splitBytes`. Return at least `minPartitions` splits if there are
    enough offsets. Without `shares_blocks` no two splits read the same block, so there must be enough blocks.
    """
    sizes = [list(_sizes(each)) for each in planned]
    total_bytes = sum(map(sum, sizes))
    splits = [
        Split(
            tuple(run for cut in cuts for run in _runs(cut)),
            sum(cut.size_bytes for cut in cuts),
            snapshot.object_store,
            snapshot.lease_id,
            time_range_ms,
        )
        for cuts in _shares(planned, sizes, total_bytes, split_count(total_bytes, options))
    ]
    more = (options.min_partitions or 0) - len(splits)
    return list(_finer(splits, more)) if shares_blocks and splits and more > 0 else splits


def _sizes(each: Planned) -> Iterator[int]:
    """Return the sizes of the units that can go to different splits: each block, or the whole object."""
    if isinstance(each, WholeObject):
        return iter((each.size_bytes,))
    return (size_bytes for _, size_bytes in _PLACE.iter_unpack(each.entries))


def _shares(
    planned: Sequence[Planned], sizes: Sequence[Sequence[int]], total_bytes: int, count: int
) -> Iterator[list[_Cut]]:
    """Begin a new split at a block beyond the current share, or if only one block is left for each split."""
    blocks_left = sum(map(len, sizes))
    share: list[_Cut] = []
    number, before_bytes = 0, 0
    for each, own_sizes in zip(planned, sizes, strict=True):
        first, share_bytes = 0, 0
        for at, size_bytes in enumerate(own_sizes):
            is_begun = bool(share) or at > first
            due = before_bytes * count // total_bytes > number or blocks_left <= count - number - 1
            if is_begun and due:
                if at > first:
                    share.append(_Cut(each, first, at, share_bytes))
                yield share
                share, first, share_bytes = [], at, 0
                number = max(number + 1, min(before_bytes * count // total_bytes, count - blocks_left))
            share_bytes += size_bytes
            before_bytes += size_bytes
            blocks_left -= 1
        share.append(_Cut(each, first, len(own_sizes), share_bytes))
    if share:
        yield share


def _finer(splits: Sequence[Split], more: int) -> Iterator[Split]:
    """Add splits when fewer blocks than requested splits exist. Each split reads one block; several splits
    may read the same block and return different offset ranges of it.
    """
    runs: list[ObjectRun] = []
    for split in splits:
        (run,) = split.runs
        # With fewer blocks than splits, the index of every object was read (`to_be_cut`).
        assert isinstance(run, ObjectRun), "a whole object has no index entries and cannot be cut"
        runs.append(run)
    bounds = [_offsets_of(run) for run in runs]
    # Positions where a block can be cut; cuts are spread evenly over them, at most one per position.
    places = sum(end - start - 1 for start, end in bounds)
    more, before = min(more, places), 0
    for split, run, (start, end) in zip(splits, runs, bounds, strict=True):
        behind = before + end - start - 1
        parts = 1 + (more * behind // places - more * before // places if places else 0)
        before = behind
        for part in range(parts):
            low, high = (start + (end - start) * at // parts for at in (part, part + 1))
            clip = replace(run.clip, start_offset=low, end_offset=high)
            yield replace(split, runs=(replace(run, clip=clip),))


def _offsets_of(run: ObjectRun) -> tuple[int, int]:
    """Return the Kafka offsets [from, to) requested from the run. The range is never empty, because runs
    without requested offsets are not planned.
    """
    blocks = list(run.blocks())
    start = max(run.clip.start_offset, blocks[0].start_offset + run.kafka_shift)
    end = min(run.clip.end_offset, blocks[-1].end_offset + run.kafka_shift)
    assert start < end, (run.key, start, end)
    return start, end


def _runs(cut: _Cut) -> Iterator[ObjectRun | WholeObject]:
    """Group adjacent blocks into runs, each read by one GET."""
    each = cut.planned
    if isinstance(each, WholeObject):
        yield each
        return
    first, begin, behind = cut.first, -1, -1
    for at, (position, size_bytes) in enumerate(each.places(cut.first, cut.last), cut.first):
        if begin < 0:
            begin = position
        elif position != behind or position + size_bytes - begin > RUN_BYTES_MAX:
            yield _run(each, first, at, begin, behind)
            first, begin = at, position
        behind = position + size_bytes
    yield _run(each, first, cut.last, begin, behind)


def _run(each: PlannedBlocks, first: int, last: int, begin: int, behind: int) -> ObjectRun:
    entries = each.entries[first * ENTRY_BYTES : last * ENTRY_BYTES]
    return ObjectRun(
        each.key, each.bucket_index, begin, behind - begin, entries, each.kafka_shift, each.clip, each.aborted
    )
