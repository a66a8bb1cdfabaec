"""Planning of a streaming query: offsets from snapshots and limits, splits from offsets. Independent of
Spark.

The rules are those of Spark's Kafka source: new partitions are read from their first offset,
maxOffsetsPerTrigger is shared in proportion to the available offsets, and minOffsetsPerTrigger waits for that
many offsets, but not longer than maxTriggerDelay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ponor_runtime.clock import Clock
from ponor_runtime.system import SystemClock

from ponor_spark.errors import DataLossError
from ponor_spark.index_cache import IndexCache
from ponor_spark.offsets import initial_offsets, latest_offsets, limited, ranges_between
from ponor_spark.option_values import Offsets
from ponor_spark.options import Options
from ponor_spark.planning import plan
from ponor_spark.pushdown import PushedFilters
from ponor_spark.snapshot import Snapshot
from ponor_spark.split import Split, TailSplit
from ponor_spark.stream_offsets import StreamOffsets, from_json, same_topics, starts_of, topic_ids_of
from ponor_spark.stream_snapshots import StreamSnapshots


class StreamPlanner:
    """Lives as long as a query, in one worker of the driver."""

    def __init__(
        self, options: Options, *, examined: Snapshot | None = None, clock: Clock | None = None
    ) -> None:
        """Create a planner without connecting.

        Args:
            options: options of the stream.
            examined: a snapshot that was opened to check the options; the planner closes it.
            clock: measures the delay of small batches.
        """
        self._options: Final = options
        self._clock: Final = clock if clock is not None else SystemClock()
        self._snapshots: Final = StreamSnapshots(options, self._clock)
        self._indexes: Final = IndexCache()
        self._examined = examined
        self._fixed: Snapshot | None = None
        self._losses_logged: set[str] = set()
        self._triggered_at_ns = self._clock.monotonic_ns()

    def initial(self) -> dict[str, Any]:
        """Return the offsets of `startingOffsets` and related options."""
        self._snapshots.demand_topics()
        snapshot = self._look()
        source = self._snapshots.objects_of(snapshot)
        return _json(initial_offsets(snapshot, self._options, source=source), snapshot)

    def latest(self, start: Mapping[str, Any], *, most: int | None, least: int | None) -> dict[str, Any]:
        """Return the end of the next batch.

        Args:
            start: the end of the last batch.
            most: maximum number of offsets; None: no limit.
            least: number of offsets to wait for; None: one is enough.

        Raises:
            DataLossError: a topic was recreated, or offsets were deleted, and `failOnDataLoss` is true.
        """
        before, known = from_json(start), self._snapshots.newest
        snapshot = self._look()
        begin, end = self._between(before, snapshot)
        if begin == end and snapshot is known and self._fixed is None:
            # processAllAvailable() needs a current "no new rows"; the snapshot may be half a second old.
            snapshot = self._snapshots.next()
            begin, end = self._between(before, snapshot)
        ahead = StreamOffsets(end).total - StreamOffsets(begin).total
        if ahead == 0:
            return dict(start)
        if (
            least is not None
            and self._fixed is None
            and ahead < least
            and self._waited_ms() < self._options.max_trigger_delay_ms
        ):
            return dict(start)
        self._triggered_at_ns = self._clock.monotonic_ns()
        return _json(end if most is None else limited(begin, end, most), snapshot)

    def newest(self) -> dict[str, Any] | None:
        """Return the latest offsets of the newest snapshot."""
        snapshot = self._snapshots.newest
        return None if snapshot is None else _json(latest_offsets(snapshot), snapshot)

    def fix_end(self) -> None:
        """Fix the current end as the end of the query."""
        self._fixed = self._look(at_once=True)

    def splits(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Split | TailSplit]:
        """Return the splits between two offsets.

        Raises:
            DataLossError: as `latest`.
        """
        if start == end:
            return []
        until = from_json(end)
        snapshot = self._look()
        if not _covers(snapshot, until.offsets):
            snapshot = self._look(at_once=True)
        self._snapshots.plan_by(snapshot)
        begin = same_topics(from_json(start), snapshot, fail_on_data_loss=self._options.fail_on_data_loss)
        ranges = ranges_between(
            snapshot, begin.offsets, until.offsets, self._options, logged=self._losses_logged
        )
        source = self._snapshots.objects_of(snapshot)
        return plan(snapshot, ranges, PushedFilters(), self._options, source=source, cache=self._indexes)

    def committed(self) -> None:
        """Record that the last planned batch is done."""
        self._snapshots.committed()

    def close(self) -> None:
        """Close all leases."""
        self._snapshots.close()

    def _look(self, *, at_once: bool = False) -> Snapshot:
        if self._examined is not None:
            self._snapshots.give_back(self._examined)
            self._examined = None
        return self._fixed if self._fixed is not None else self._snapshots.fresh(at_once=at_once)

    def _between(self, before: StreamOffsets, snapshot: Snapshot) -> tuple[Offsets, Offsets]:
        """Return where the query continues, and the available end."""
        # Reports partitions that no longer exist.
        ranges_between(snapshot, before.offsets, {}, self._options, logged=self._losses_logged)
        begin = self._positions(before, snapshot)
        return begin, self._not_before(begin, latest_offsets(snapshot), before)

    def _positions(self, before: StreamOffsets, snapshot: Snapshot) -> Offsets:
        """Return where each partition of the snapshot continues: new ones at their log start."""
        known = same_topics(before, snapshot, fail_on_data_loss=self._options.fail_on_data_loss).offsets
        return {
            topic: {
                partition: max(known.get(topic, {}).get(partition, log_start), log_start)
                for partition, log_start in starts.items()
            }
            for topic, starts in starts_of(snapshot).items()
        }

    def _not_before(self, begin: Offsets, end: Offsets, before: StreamOffsets) -> Offsets:
        """Return `end`, but not below `begin`: a query that read the tail may be ahead of the objects.

        In a topic with the same id this is not data loss.
        """
        for topic, by_partition in end.items():
            for partition, offset in by_partition.items():
                ahead_of_end = begin[topic][partition] > offset
                if ahead_of_end and topic not in before.topic_ids and self._options.fail_on_data_loss:
                    raise DataLossError(
                        f"failOnDataLoss: {topic} {partition} ends at {offset}, below the query's offset"
                        f" {begin[topic][partition]};"
                        " begin with a new checkpoint, or set failOnDataLoss to false"
                    )
        return {
            topic: {
                partition: max(offset, begin[topic][partition]) for partition, offset in by_partition.items()
            }
            for topic, by_partition in end.items()
        }

    def _waited_ms(self) -> int:
        return (self._clock.monotonic_ns() - self._triggered_at_ns) // 1_000_000


def _json(offsets: Offsets, snapshot: Snapshot) -> dict[str, Any]:
    return StreamOffsets(offsets, topic_ids_of(snapshot)).to_json()


def _covers(snapshot: Snapshot, end: Offsets) -> bool:
    latest = latest_offsets(snapshot)
    return all(
        offset <= latest.get(topic, {}).get(partition, -1)
        for topic, by_partition in end.items()
        for partition, offset in by_partition.items()
    )
