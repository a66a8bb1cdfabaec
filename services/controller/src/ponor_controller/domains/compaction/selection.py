"""Select objects that are worth compacting together, and score the benefit.

Every byte should be copied about once. Objects that brokers uploaded are joined when they fill a task, or
when the oldest of them has waited long enough. Outputs of compaction are joined only with several others of
similar size, so that the size multiplies with every further copy (docs/design/compaction.md#what-is-offered).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ponor_metadata.nouns.objects import ObjectRow

from ponor_controller.settings import CompactionSettings

TIER_BITS: Final = 3
"""Sizes of one tier differ by less than a factor of eight."""
PIECE_WORTH_BYTES: Final = 100
"""Benefit of one piece less, expressed in bytes of metadata."""
TRIMMED_MIB_WORTH: Final = 100
"""Benefit of freeing a MiB of trimmed data, expressed in bytes of metadata."""
STREAM_OBJECT_METADATA_BYTES: Final = 68
"""Size of the two rows of a stream object in the image."""
MIB: Final = 1024 * 1024
SHORT_RUN_PATIENCE: Final = 12
"""A short run of stream objects waits this multiple of `compaction_patience_ms` before it is joined."""


class SetObject(NamedTuple):
    """A committed stream set object with the values that the selection needs."""

    row: ObjectRow
    metadata_bytes: int
    is_compacted: bool

    @property
    def tier(self) -> int:
        """The size class of a compacted object; 0 for every object that a broker uploaded."""
        return 1 + self.row.size_bytes.bit_length() // TIER_BITS if self.is_compacted else 0


class StreamObject(NamedTuple):
    """A committed stream object with its offsets."""

    row: ObjectRow
    start_offset: int
    end_offset: int


class Bounds(NamedTuple):
    """Bounds of one task."""

    now_ms: int
    source_bytes_max: int
    sources_max: int


def overdue(objects: Sequence[SetObject], bounds: Bounds, settings: CompactionSettings) -> list[SetObject]:
    """The oldest objects that are due for a forced split, as many as fit into a task, in the order of their
    commits.
    """
    since_ms = bounds.now_ms - settings.compaction_force_split_ms
    old = [
        each
        for each in objects
        if each.row.committed_at_ms <= since_ms and each.row.size_bytes <= bounds.source_bytes_max
    ]
    return _prefix(old, bounds)


def fullest_tier(
    objects: Sequence[SetObject], bounds: Bounds, settings: CompactionSettings
) -> list[SetObject]:
    """Of the tiers that are worth joining, take the one with the most metadata. Return its objects in the
    order of their commits.

    Empty if no tier is worth joining yet.
    """
    tiers: dict[int, list[SetObject]] = {}
    for each in objects:
        if each.row.size_bytes * 2 <= bounds.source_bytes_max and is_old_enough(each.row, bounds, settings):
            tiers.setdefault(each.tier, []).append(each)
    best: list[SetObject] = []
    for tier, members in sorted(tiers.items()):
        chosen = _prefix(members, bounds)
        if _is_enough(tier, chosen, len(members) > len(chosen), bounds, settings) and _metadata_bytes(
            chosen
        ) > _metadata_bytes(best):
            best = chosen
    return best


def longest_run(
    objects: Sequence[StreamObject], bounds: Bounds, settings: CompactionSettings
) -> list[StreamObject]:
    """Of the runs of adjacent stream objects that are worth joining, return the one with the most objects.

    Empty if no run is worth joining yet.
    """
    size_bytes_max = min(bounds.source_bytes_max, settings.compaction_object_bytes_max)
    best: list[StreamObject] = []
    run: list[StreamObject] = []
    run_bytes = 0
    for each in objects:
        small = each.row.size_bytes * 2 <= size_bytes_max and is_old_enough(each.row, bounds, settings)
        adjacent = run and run[-1].end_offset == each.start_offset
        full = run_bytes + each.row.size_bytes > size_bytes_max or len(run) >= bounds.sources_max
        if not small or not adjacent or full:
            best = _longer(best, run, bounds, settings)
            run, run_bytes = [], 0
        if small:
            run.append(each)
            run_bytes += each.row.size_bytes
    return _longer(best, run, bounds, settings)


def score(
    saved_metadata_bytes: int, saved_pieces: int, rows: Sequence[ObjectRow], bounds: Bounds, patience_ms: int
) -> float:
    """Benefit per copied MiB: saved metadata and saved pieces (each saves one GET per cold reader). It rises
    with the age of the objects.
    """
    size_bytes = sum(row.size_bytes for row in rows)
    age_ms = bounds.now_ms - min(row.committed_at_ms for row in rows)
    benefit = saved_metadata_bytes + PIECE_WORTH_BYTES * saved_pieces
    return benefit * (1 + max(0, age_ms) / max(1, patience_ms)) * MIB / max(MIB, size_bytes)


def score_trimmed(row: ObjectRow, share: float, metadata_bytes: int) -> float:
    """The score of rewriting an object of which `share` is trimmed; only the rest must be copied."""
    freed_bytes = share * row.size_bytes
    benefit = share * metadata_bytes + TRIMMED_MIB_WORTH * freed_bytes / MIB
    return benefit * MIB / max(MIB, row.size_bytes - freed_bytes)


def _prefix(objects: Sequence[SetObject], bounds: Bounds) -> list[SetObject]:
    chosen: list[SetObject] = []
    size_bytes = 0
    for each in objects:
        size_bytes += each.row.size_bytes
        if size_bytes > bounds.source_bytes_max or len(chosen) == bounds.sources_max:
            break
        chosen.append(each)
    return chosen


def _is_enough(
    tier: int, chosen: Sequence[SetObject], more: bool, bounds: Bounds, settings: CompactionSettings
) -> bool:
    if len(chosen) < 2:
        return False
    if tier > 0:
        return len(chosen) >= settings.compaction_fan_in
    size_bytes = sum(each.row.size_bytes for each in chosen)
    oldest_ms = chosen[0].row.committed_at_ms
    waited = oldest_ms <= bounds.now_ms - settings.compaction_patience_ms
    return more or waited or size_bytes * 2 >= bounds.source_bytes_max


def _longer(
    best: list[StreamObject], run: list[StreamObject], bounds: Bounds, settings: CompactionSettings
) -> list[StreamObject]:
    return run if len(run) > len(best) and _is_worth_joining(run, bounds, settings) else best


def _is_worth_joining(run: Sequence[StreamObject], bounds: Bounds, settings: CompactionSettings) -> bool:
    """Whether the joined object is at least twice as large as the largest one, and the run is long or has
    waited long.
    """
    sizes = [each.row.size_bytes for each in run]
    if len(run) >= settings.compaction_fan_in and sum(sizes) >= 2 * max(sizes):
        return True
    oldest_ms = min(each.row.committed_at_ms for each in run)
    waited = oldest_ms <= bounds.now_ms - SHORT_RUN_PATIENCE * settings.compaction_patience_ms
    return waited and len(run) >= 2 and sum(sizes) >= 2 * max(sizes)


def is_old_enough(row: ObjectRow, bounds: Bounds, settings: CompactionSettings) -> bool:
    """Whether the object was committed at least `compaction_settle_ms` ago."""
    return row.committed_at_ms <= bounds.now_ms - settings.compaction_settle_ms


def _metadata_bytes(objects: Sequence[SetObject]) -> int:
    return sum(each.metadata_bytes for each in objects)
