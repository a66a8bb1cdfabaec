"""Plan splits from offsets and filters: which objects and which of their blocks each task reads.

Ranges of Kafka offsets are mapped through segments and pieces to objects and blocks; `packing` turns these
into splits. An index is read only if the metadata is not sufficient (docs/design/spark.md#planning), once,
and many in parallel. The index is compared with the metadata here, or by the executor that reads it, so that
an uncovered range is an error and never a short result.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from s3stream.objects.format import BlockEntry
from s3stream.objects.index import ObjectIndex

from ponor_spark.clip import AbortedRange, Clip
from ponor_spark.errors import StoredDataError
from ponor_spark.index_cache import IndexCache
from ponor_spark.lease_notes import LeaseNotes
from ponor_spark.object_indexes import ObjectIndexes, ObjectPlace, place_of
from ponor_spark.object_source import ObjectSource, open_object_source
from ponor_spark.offsets import OffsetRange
from ponor_spark.options import Options
from ponor_spark.packing import WHOLE_BYTES_MAX, Planned, PlannedBlocks, pack, to_be_cut
from ponor_spark.pushdown import PushedFilters
from ponor_spark.snapshot import PartitionSnapshot, SegmentSlice, Snapshot
from ponor_spark.split import Split, TailSplit, WholeObject
from ponor_spark.stream_blocks import covering_blocks

__all__ = ["OffsetRange", "PushedFilters", "Split", "TailSplit", "plan"]

LOG: Final = logging.getLogger("ponor.spark")


class _Wanted(NamedTuple):
    """Stream offsets [start_offset, end_offset) requested from one object.

    `is_all`: the object holds nothing else and fits into one GET.
    """

    place: ObjectPlace
    bucket_index: int
    stream_id: int
    start_offset: int
    end_offset: int
    kafka_shift: int
    clip: Clip
    aborted: tuple[AbortedRange, ...]
    is_all: bool

    def as_whole(self) -> WholeObject:
        """An entire object, whose index the executor reads."""
        assert self.is_all
        return WholeObject(
            self.place.key,
            self.bucket_index,
            self.place.size_bytes,
            self.stream_id,
            self.kafka_shift,
            self.clip,
            self.aborted,
        )


def plan(
    snapshot: Snapshot,
    ranges: Sequence[OffsetRange],
    filters: PushedFilters,
    options: Options,
    *,
    source: ObjectSource | None = None,
    cache: IndexCache | None = None,
    shares_blocks: bool = True,
) -> list[Split | TailSplit]:
    """Return splits that together contain exactly these offsets, restricted by the filters, each once.

    Args:
        snapshot: the snapshot of `ranges`.
        ranges: at most one for each partition; all offsets are in the snapshot or its tail.
        filters: from `split_filters`.
        options: sizes, and the isolation level.
        source: reads the indexes; by default the snapshot's store, with this process's credentials.
        cache: keeps indexes for the next planning; by default nothing is kept.
        shares_blocks: whether several splits may read a block if `minPartitions` exceeds the number of
            blocks.

    Returns:
        Splits of objects in (topic, partition, offset) order, then tails; possibly empty. No split is empty.

    Raises:
        SnapshotExpiredError: an object is missing.
        StoredDataError: an object is damaged or contradicts the metadata.
    """
    LeaseNotes.of_environment(os.environ).use(snapshot.lease)
    partitions = {(each.topic, each.partition): each for each in snapshot.partitions}
    kept = _kept(ranges, filters)
    wanted = [
        one
        for each in kept
        for one in _pieces(snapshot, partitions[each.topic, each.partition], each, filters, options)
    ]
    splits: list[Split | TailSplit] = []
    if wanted:
        opened = source or open_object_source(snapshot.object_store)
        with ObjectIndexes(opened, lease_id=snapshot.lease_id, cache=cache) as indexes:
            planned = _looked_up(wanted, indexes, options, filters.time_range)
        splits += pack(planned, snapshot, options, filters.time_range, shares_blocks=shares_blocks)
        LOG.info(
            "planned %d splits of %d parts of objects; %d indexes were read",
            len(splits),
            len(planned),
            indexes.read_count,
        )
    splits += (
        tail
        for each in kept
        if (tail := _tail(snapshot, partitions[each.topic, each.partition], each, filters, options))
    )
    return splits


def _kept(ranges: Iterable[OffsetRange], filters: PushedFilters) -> list[OffsetRange]:
    """Return the ranges, clipped to the filters and sorted."""
    kept: list[OffsetRange] = []
    for each in ranges:
        if filters.takes(each.topic, each.partition):
            start, end = filters.clip(each.start_offset, each.end_offset)
            if start < end:
                kept.append(OffsetRange(each.topic, each.partition, start, end))
    return sorted(kept, key=lambda each: (each.topic, each.partition))


def _pieces(
    snapshot: Snapshot,
    partition: PartitionSnapshot,
    wanted: OffsetRange,
    filters: PushedFilters,
    options: Options,
) -> Iterator[_Wanted]:
    """Return the parts of the range by object.

    Consecutive segments in one stream with the same distance between Kafka and stream offsets are joined.
    """
    aborted = partition.aborted if options.read_committed else ()
    for part in _joined(partition.segments, filters.time_range_ms[0]):
        first, last = max(part.base_offset, wanted.start_offset), min(part.end_offset, wanted.end_offset)
        if first >= last:
            continue
        within = tuple(one for one in aborted if one.last_offset >= first and one.first_offset < last)
        shift = part.kafka_shift
        start, end = first - shift, last - shift
        reached = start
        for piece in snapshot.pieces_of(part.stream_id, start, end):
            if piece.start_offset > reached:
                break
            begin, reached = max(start, piece.start_offset), min(end, piece.end_offset)
            yield _Wanted(
                place_of(snapshot.namespaces, piece),
                piece.bucket_index,
                part.stream_id,
                begin,
                reached,
                shift,
                Clip(wanted.topic, wanted.partition, begin + shift, reached + shift),
                within,
                piece.is_all
                and piece.size_bytes <= WHOLE_BYTES_MAX
                and (begin, reached) == (piece.start_offset, piece.end_offset),
            )
        if reached != end:
            raise StoredDataError(
                f"{wanted.topic} {wanted.partition}: the snapshot names no object for offset"
                f" {reached + shift}; load again"
            )


def _joined(segments: Sequence[SegmentSlice], time_from_ms: int) -> Iterator[SegmentSlice]:
    """Return the segments that may hold a record at or after a time; consecutive segments are joined as
    described in `_pieces`.
    """
    last: SegmentSlice | None = None
    for part in segments:
        if part.max_timestamp_ms is not None and part.max_timestamp_ms < time_from_ms:
            continue
        goes_on = last is not None and (part.stream_id, part.kafka_shift, part.base_offset) == (
            last.stream_id,
            last.kafka_shift,
            last.end_offset,
        )
        if last is not None and not goes_on:
            yield last
        base_offset = last.base_offset if last is not None and goes_on else part.base_offset
        last = SegmentSlice(part.stream_id, base_offset, part.end_offset, part.kafka_shift)
    if last is not None:
        yield last


def _looked_up(
    wanted: Sequence[_Wanted], indexes: ObjectIndexes, options: Options, time_range_ms: tuple[int, int] | None
) -> list[Planned]:
    """Return for each part what executors read: blocks if the index was needed, or a whole object.

    An object that is requested entirely and fits into one GET needs no index here: its size is known, and
    the executor's GET includes the index. Parts restricted by time do need it, because only indexes have
    times, and so do objects that prevent equal splits.
    """
    found: list[Planned | None] = [
        each.as_whole() if each.is_all and time_range_ms is None else None for each in wanted
    ]
    unknown = [number for number, each in enumerate(found) if each is None]
    while True:
        _look_up(unknown, wanted, found, indexes, time_range_ms)
        known = {number: each for number, each in enumerate(found) if each is not None}
        planned, numbers = list(known.values()), list(known)
        # The requested blocks have fewer bytes than their objects, so the average split size is smaller now,
        # and another object may prevent equal splits.
        unknown = [numbers[at] for at in to_be_cut(planned, options)]
        if not unknown:
            return planned


def _look_up(
    numbers: Iterable[int],
    wanted: Sequence[_Wanted],
    found: list[Planned | None],
    indexes: ObjectIndexes,
    time_range_ms: tuple[int, int] | None,
) -> None:
    """Set the blocks of these parts in `found`, None if filters leave no block; each index is read once."""
    by_object: dict[ObjectPlace, list[int]] = {}
    for number in numbers:
        by_object.setdefault(wanted[number].place, []).append(number)
    for index, parts in zip(indexes.read(by_object), by_object.values(), strict=True):
        for number in parts:
            found[number] = _blocks(wanted[number], index, time_range_ms)


def _blocks(each: _Wanted, index: ObjectIndex, time_range_ms: tuple[int, int] | None) -> PlannedBlocks | None:
    """Return the blocks of a part, without those entirely before or after the time range."""
    blocks = covering_blocks(index, each.stream_id, each.start_offset, each.end_offset)
    if time_range_ms is not None:
        from_ms, to_ms = time_range_ms
        blocks = [
            block for block in blocks if block.max_timestamp_ms >= from_ms and block.min_timestamp_ms < to_ms
        ]
    if not blocks:
        return None
    entries = b"".join(map(BlockEntry.encode, blocks))
    return PlannedBlocks(index.key, each.bucket_index, each.kafka_shift, each.clip, each.aborted, entries)


def _tail(
    snapshot: Snapshot,
    partition: PartitionSnapshot,
    wanted: OffsetRange,
    filters: PushedFilters,
    options: Options,
) -> TailSplit | None:
    start = max(wanted.start_offset, partition.committed_end_offset)
    if start >= wanted.end_offset:
        return None
    named = options.cluster.bootstrap or snapshot.brokers
    brokers = tuple(dict.fromkeys([*filter(None, [partition.leader]), *named]))
    return TailSplit(
        Clip(wanted.topic, wanted.partition, start, wanted.end_offset),
        partition.topic_id,
        brokers,
        snapshot.lease_id,
        options.read_committed,
        filters.time_range,
    )
