"""Compute from the options where each partition of a query starts and ends, and detect data loss.

The rules are those of Spark's Kafka source, for batches and micro-batches. Requested offsets below the log
start or beyond the end are data loss; gaps within a log are not, because control records and compaction cause
them. With `failOnDataLoss` false, missing offsets are skipped and logged. Offsets
are never reset to the earliest, because rows would be read twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from ponor_spark.errors import DataLossError, OptionError
from ponor_spark.index_cache import IndexCache
from ponor_spark.object_indexes import ObjectIndexes
from ponor_spark.object_source import ObjectSource, open_object_source
from ponor_spark.option_values import OFFSET_EARLIEST, OFFSET_LATEST, Offsets
from ponor_spark.options import AtOffsets, AtTime, AtTimes, Bound, Edge, Options, Tail
from ponor_spark.snapshot import PartitionSnapshot, Snapshot
from ponor_spark.time_lookup import find_time

LOG: Final = logging.getLogger("ponor.spark")
LOSSES_REPORTED_MAX: Final = 1_000
"""Maximum number of losses that a streaming query remembers, so that it does not log them again."""
SEARCHES_IN_FLIGHT_MAX: Final = 16
"""Maximum number of partitions in which a timestamp is looked up in parallel: each look-up waits for
sequential reads of the store."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The Kafka offsets [start_offset, end_offset) of a partition to read, all in the snapshot or its
    tail.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int


def batch_ranges(snapshot: Snapshot, options: Options) -> tuple[OffsetRange, ...]:
    """Return the ranges of a batch: one for each partition, without empty ones.

    Raises:
        OptionError: the named offsets or timestamps do not fit the partitions.
        DataLossError: named offsets were deleted or do not exist yet, and `failOnDataLoss` is true.
        PonorSparkError: an object for a timestamp lookup cannot be read.
    """
    cache = IndexCache()  # the two times are often in the same objects
    starts = _resolve(snapshot, options, options.start, cache, is_start=True)
    ends = _resolve(snapshot, options, options.end, cache, is_start=False)
    found = [
        _present(each, starts[each.topic][each.partition], ends[each.topic][each.partition], options)
        for each in snapshot.partitions
    ]
    return tuple(each for each in found if each.start_offset < each.end_offset)


def initial_offsets(snapshot: Snapshot, options: Options, *, source: ObjectSource | None = None) -> Offsets:
    """Return the start offsets of a new streaming query; `source` as in `planning.plan`.

    Raises:
        OptionError, DataLossError, PonorSparkError: as `batch_ranges`.
    """
    return _resolve(snapshot, options, options.start, IndexCache(), is_start=True, source=source)


def latest_offsets(snapshot: Snapshot) -> Offsets:
    """Return the readable end offsets."""
    return _each(snapshot.partitions, lambda each: each.readable_end_offset)


def ranges_between(
    snapshot: Snapshot, start: Offsets, end: Offsets, options: Options, *, logged: set[str] | None = None
) -> tuple[OffsetRange, ...]:
    """Return the ranges of a micro-batch; new partitions start at their log start.

    Args:
        snapshot: covers `end`.
        start: start offsets of the micro-batch.
        end: end offsets of the micro-batch.
        options: options of the stream.
        logged: losses already logged; new ones are added. Spark calls this function a hundred times a second,
            and each call finds the same losses.

    Raises:
        DataLossError: offsets or partitions were deleted, and `failOnDataLoss` is true.
    """
    partitions = {(each.topic, each.partition): each for each in snapshot.partitions}
    for topic, by_partition in start.items():
        for number in by_partition:
            if (topic, number) not in partitions:
                _lose(options, f"{topic} {number} no longer exists; its rows are skipped", logged)
    found: list[OffsetRange] = []
    for (topic, number), each in partitions.items():
        until = end.get(topic, {}).get(number)
        if until is None:
            continue
        begin = start.get(topic, {}).get(number)
        if begin is None:
            if each.log_start_offset > 0:
                _lose(
                    options,
                    f"{topic} {number} is new and begins at {each.log_start_offset} instead of 0",
                    logged,
                )
            begin = each.log_start_offset
        if begin > until:
            _lose(
                options,
                f"{topic} {number} ends at {until}, below the query's offset {begin}; was the topic"
                " recreated?",
                logged,
            )
            continue
        found.append(_present(each, begin, until, options, logged))
    return tuple(each for each in found if each.start_offset < each.end_offset)


def limited(start: Offsets, latest: Offsets, offsets_max: int) -> Offsets:
    """Lower the end offsets to about `offsets_max` new ones, shared in proportion to those available."""
    ahead = {
        (topic, number): offset - start.get(topic, {}).get(number, offset)
        for topic, by_partition in latest.items()
        for number, offset in by_partition.items()
    }
    total = sum(size for size in ahead.values() if size > 0)
    if total <= offsets_max:
        return latest

    def end_of(topic: str, number: int, offset: int) -> int:
        size = ahead[topic, number]
        if size <= 0:
            return offset
        share = offsets_max * (size / total)
        # As in the Kafka source: a partition with data gets at least one offset, so that a large partition
        # does not starve it.
        return min(offset - size + (ceil(share) if share < 1 else floor(share)), offset)

    return {
        topic: {number: end_of(topic, number, offset) for number, offset in by_partition.items()}
        for topic, by_partition in latest.items()
    }


def _present(
    each: PartitionSnapshot, start: int, end: int, options: Options, logged: set[str] | None = None
) -> OffsetRange:
    """Return the part of the requested offsets that exists."""
    name = f"{each.topic} {each.partition}"
    if start < each.log_start_offset and start < end:
        _lose(
            options,
            f"{name} begins at {each.log_start_offset}, above the requested offset {start}: retention or"
            " DeleteRecords deleted the offsets in between",
            logged,
        )
        start = each.log_start_offset
    readable = each.readable_end_offset
    if end > readable or start > readable:
        ahead = (
            ""
            if options.tail is Tail.BROKER
            else " (only uploaded records are read; tail=broker also reads records that are not uploaded yet)"
        )
        _lose(
            options, f"{name} ends at {readable}, below the requested offset {max(start, end)}{ahead}", logged
        )
        end = min(end, readable)
    return OffsetRange(each.topic, each.partition, start, max(start, end))


def _lose(options: Options, what: str, logged: set[str] | None) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(
            f"failOnDataLoss: {what}; correct the offsets, or set failOnDataLoss to false to read the"
            " offsets that exist"
        )
    if logged is not None:
        if what in logged:
            return
        if len(logged) >= LOSSES_REPORTED_MAX:
            logged.clear()
        logged.add(what)
    LOG.warning("failOnDataLoss is false: %s", what)


def _resolve(
    snapshot: Snapshot,
    options: Options,
    bound: Bound,
    cache: IndexCache,
    *,
    is_start: bool,
    source: ObjectSource | None = None,
) -> Offsets:
    match bound:
        case Edge.EARLIEST:
            return _each(snapshot.partitions, lambda each: each.log_start_offset)
        case Edge.LATEST:
            return latest_offsets(snapshot)
        case AtOffsets(offsets, option):
            _require_all(snapshot, offsets, option)
            return _each(snapshot.partitions, lambda each: _meant(each, offsets[each.topic][each.partition]))
        case AtTime(timestamp_ms, option):
            times = _each(snapshot.partitions, lambda _: timestamp_ms)
        case AtTimes(timestamps_ms, option):
            _require_all(snapshot, timestamps_ms, option)
            times = timestamps_ms
    opened = source or open_object_source(snapshot.object_store)
    with (
        ObjectIndexes(opened, lease_id=snapshot.lease_id, cache=cache) as indexes,
        ThreadPoolExecutor(SEARCHES_IN_FLIGHT_MAX, thread_name_prefix="ponor-search") as pool,
    ):
        found = pool.map(
            lambda each: _at_time(
                snapshot, each, times[each.topic][each.partition], indexes, (options, option, is_start)
            ),
            snapshot.partitions,
        )
        return _each(snapshot.partitions, lambda _: next(found))


def _at_time(
    snapshot: Snapshot,
    each: PartitionSnapshot,
    timestamp_ms: int,
    indexes: ObjectIndexes,
    asked: tuple[Options, str, bool],
) -> int:
    options, option, is_start = asked
    found = find_time(snapshot, each, timestamp_ms, indexes)
    if found is not None:
        return found
    name = f"{each.topic} {each.partition}"
    if each.readable_end_offset > each.committed_end_offset:
        raise OptionError(
            f"{option}: no uploaded record of {name} is at or after {timestamp_ms}, and records that are not"
            " uploaded yet are not searched; use tail=committed, or name offsets instead of a time"
        )
    if is_start and not options.no_match_is_latest:
        raise OptionError(
            f"{option}: no record of {name} is at or after {timestamp_ms}; give an earlier time, or set"
            " startingOffsetsByTimestampStrategy to latest"
        )
    return each.readable_end_offset


def _meant(each: PartitionSnapshot, offset: int) -> int:
    if offset == OFFSET_EARLIEST:
        return each.log_start_offset
    return each.readable_end_offset if offset == OFFSET_LATEST else offset


def _require_all(snapshot: Snapshot, named: Mapping[str, Mapping[int, int]], option: str) -> None:
    """Check that the option names exactly the partitions of the query, as in the Kafka source."""
    wanted = {(each.topic, each.partition) for each in snapshot.partitions}
    given = {(topic, number) for topic, by_partition in named.items() for number in by_partition}
    for missing in sorted(wanted - given):
        raise OptionError(
            f"{option}: {missing[0]} {missing[1]} is not named; name every partition of the query (-2 is the"
            " earliest offset, -1 the latest)"
        )
    for other in sorted(given - wanted):
        raise OptionError(f"{option}: {other[0]} {other[1]} is not read by this query; remove it")


def _each(partitions: Iterable[PartitionSnapshot], value: Callable[[PartitionSnapshot], int]) -> Offsets:
    found: Offsets = {}
    for each in partitions:
        found.setdefault(each.topic, {})[each.partition] = value(each)
    return found
