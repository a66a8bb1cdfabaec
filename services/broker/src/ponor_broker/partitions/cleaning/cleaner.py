"""The log cleaner of a broker: cleans the partitions that the broker leads, one at a time, the
dirtiest first.

Internal topics are excluded, because their owners rewrite them (docs/design/log-cleaner.md#consumer-offsets).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ponor_partition.errors import PartitionCorruptError
from ponor_runtime.clock import Clock
from ponor_runtime.telemetry import Telemetry
from s3stream.errors import S3StreamError

from ponor_broker.partitions.cleaning.cleanable import Cleanable, survey
from ponor_broker.partitions.cleaning.cleaned_segment import BatchTooLargeError
from ponor_broker.partitions.cleaning.cleaning_pass import CleaningLimits, CleaningPass, CleaningStoppedError
from ponor_broker.partitions.cleaning.pace import Pace
from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.partition import Partition

LOG: Final = logging.getLogger("ponor.broker.partitions")
SEGMENTS_PER_TURN: Final = 2_000
"""Segments that are checked per event-loop turn; each partition adds ten to this count."""
RETRY_MS: Final = 60_000
"""Pause of a partition whose cleaning failed; other partitions continue."""
TOO_LARGE_RETRY_MS: Final = 3_600_000
"""Pause of a partition with a batch that is too large for the settings: only a change of the settings helps,
and each attempt reads all data before the batch again."""


class TwinStreams(Protocol):
    """The part of `OwnedStreams` that the cleaner uses."""

    async def add_cleaned_streams(self, partition: Partition) -> None: ...


class LogCleaner:
    """The cleaning loop; runs until cancelled. `partitions` returns the open partitions, `touch` makes
    maintenance handle a partition.
    """

    def __init__(
        self,
        partitions: Callable[[], Sequence[Partition]],
        twins: TwinStreams,
        touch: Callable[[Partition], None],
        clock: Clock,
        telemetry: Telemetry,
        limits: CleaningLimits,
        pace: Pace,
        *,
        interval_ms: int,
    ) -> None:
        self._partitions = partitions
        self._twins = twins
        self._touch = touch
        self._clock = clock
        self._telemetry = telemetry
        self._limits = limits
        self._pace = pace
        self._interval_ms = interval_ms
        self._failed_until_ms: dict[PartitionKey, int] = {}
        self._running: CleaningPass | None = None
        self._dirty_ratio_max = 0.0
        self._oldest_dirty_ms: int | None = None
        self._bytes_read = telemetry.counter("ponor_cleaner_bytes_total", direction="in")
        self._bytes_written = telemetry.counter("ponor_cleaner_bytes_total", direction="out")
        self._records_removed = telemetry.counter("ponor_cleaner_records_removed_total")
        telemetry.gauge("ponor_cleaner_map_bytes", self._map_bytes)
        telemetry.gauge("ponor_cleaner_dirty_max_ratio", lambda: self._dirty_ratio_max)
        telemetry.gauge("ponor_cleaner_dirty_age_seconds", lambda: self._dirty_age_ms() / 1000)

    async def run(self) -> None:
        """Clean partitions until cancelled."""
        while True:
            if not await self.round():
                await self._clock.sleep(self._interval_ms / 1000)

    async def round(self) -> bool:
        """Clean the dirtiest due partition once; return False if there is none."""
        chosen = await self._choose()
        if chosen is None:
            return False
        await self._clean(*chosen)
        return True

    async def _choose(self) -> tuple[Partition, Cleanable] | None:
        now_ms = self._clock.wall_ms()
        self._failed_until_ms = {
            key: until_ms for key, until_ms in self._failed_until_ms.items() if until_ms > now_ms
        }
        ratio_max, oldest_ms = 0.0, None
        chosen: tuple[Partition, Cleanable] | None = None
        examined = 0
        for partition in self._partitions():
            examined += 10
            if examined >= SEGMENTS_PER_TURN:
                examined = 0
                await self._clock.sleep(0)
            if not partition.config.is_compacted or partition.is_internal or not partition.is_writable:
                continue
            if not partition.log.is_trimmed(partition.log_start_offset):
                self._touch(partition)  # replaced slices may be trimmed once the output is uploaded
            examined += len(partition.log.log_meta.segments)
            cleanable = _survey(partition, now_ms)
            if cleanable is None:
                continue
            ratio_max = max(ratio_max, cleanable.dirty_ratio)
            oldest_ms = cleanable.oldest_ms if oldest_ms is None else min(oldest_ms, cleanable.oldest_ms)
            is_wanted = (
                cleanable.is_due(partition.config, now_ms)
                and partition.identity.key not in self._failed_until_ms
            )
            if is_wanted and (chosen is None or cleanable.dirty_ratio > chosen[1].dirty_ratio):
                chosen = partition, cleanable
        self._dirty_ratio_max, self._oldest_dirty_ms = ratio_max, oldest_ms
        return chosen

    async def _clean(self, partition: Partition, cleanable: Cleanable) -> None:
        one = CleaningPass(partition, cleanable, self._limits, self._clock, self._pace)
        began_ns = self._clock.monotonic_ns()
        self._running = one
        try:
            await self._twins.add_cleaned_streams(partition)
            if not partition.is_writable:
                raise CleaningStoppedError("the partition is closing or moving")
            await one.run()
        except (CleaningStoppedError, S3StreamError, PartitionCorruptError) as error:
            self._rest(partition, TOO_LARGE_RETRY_MS if isinstance(error, BatchTooLargeError) else RETRY_MS)
            if partition.is_writable:
                LOG.warning("cleaning of %s failed, retrying: %s", partition.identity, error)
            stopped = isinstance(error, CleaningStoppedError) or not partition.is_writable
            result = "stopped" if stopped else "failed"
        else:
            if one.report.cleaned_to == cleanable.dirty_from:
                self._rest(partition)  # an open transaction begins at the start of the dirty part
            result = "done"
        finally:
            self._running = None
        self._tell(partition, one, result, (self._clock.monotonic_ns() - began_ns) // 1_000_000)
        if partition.is_writable:
            self._touch(partition)  # its streams may be trimmed now

    def _rest(self, partition: Partition, rest_ms: int = RETRY_MS) -> None:
        self._failed_until_ms[partition.identity.key] = self._clock.wall_ms() + rest_ms

    def _tell(self, partition: Partition, one: CleaningPass, result: str, took_ms: int) -> None:
        report = one.report
        self._telemetry.counter("ponor_cleaner_passes_total", result=result).add(1)
        self._bytes_read.add(report.bytes_read)
        self._bytes_written.add(report.bytes_written)
        self._records_removed.add(report.records_removed)
        LOG.info(
            "%s: cleaned up to %d (%s): %d bytes read, %d written, %d records removed, %d ms",
            partition.identity,
            report.cleaned_to,
            result,
            report.bytes_read,
            report.bytes_written,
            report.records_removed,
            took_ms,
        )

    def _map_bytes(self) -> int:
        running = self._running
        return 0 if running is None else running.map_bytes

    def _dirty_age_ms(self) -> int:
        oldest_ms = self._oldest_dirty_ms
        return 0 if oldest_ms is None else max(self._clock.wall_ms() - oldest_ms, 0)


def _survey(partition: Partition, now_ms: int) -> Cleanable | None:
    log_meta = partition.log.log_meta
    # A segment with an open transaction is not cleaned, nor any segment after it.
    stable = partition.last_stable_offset
    return survey(log_meta, partition.log_start_offset, stable, partition.config, now_ms)
