"""Maintenance of open partitions, outside the request path.

One loop handles partitions that changed or whose deadline has come (`maintenance_schedule`):
retention, trims of streams, creation of Time streams, deletion of unknown streams, trims of
rewritten Meta streams, expiry of producers. All of this may be late without harm. Idle partitions
cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ponor_kafka.internal_topics import INTERNAL_TOPICS
from ponor_runtime.clock import Clock
from ponor_runtime.telemetry import Telemetry
from s3stream.errors import S3StreamError

from ponor_broker.partitions.handoff.owned_streams import OwnedStreams
from ponor_broker.partitions.maintenance import retention
from ponor_broker.partitions.maintenance.maintenance_schedule import MaintenanceSchedule
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_manager import PartitionManager

LOG: Final = logging.getLogger("ponor.broker.partitions")
TIME_STREAMS_PER_ROUND_MAX: Final = 500
PARTITIONS_PER_TURN: Final = 100
"""Partitions that are handled concurrently: the writes of their new log start offsets share syncs of the
write-ahead log and operations of the session. One after the other, a thousand partitions under load took
minutes, during which the object store grew. After a broker start every partition is due, so the loop yields
to other tasks between the turns."""

SEGMENTS_PER_LOOK: Final = 1_000
"""Segments of one partition that one round checks and drops; a partition with more is due again."""


class PartitionMaintenance:
    """The maintenance loop; runs until cancelled."""

    def __init__(
        self,
        partitions: PartitionManager,
        owned: OwnedStreams,
        schedule: MaintenanceSchedule,
        clock: Clock,
        telemetry: Telemetry,
        *,
        interval_ms: int,
        producer_expiration_ms: int,
    ) -> None:
        self._partitions = partitions
        self._owned = owned
        self._schedule = schedule
        self._clock = clock
        self._interval_ms = interval_ms
        self._producer_expiration_ms = producer_expiration_ms
        self._bytes_deleted = telemetry.counter("ponor_retention_deleted_bytes_total")

    def expire_producers_after(self, ms: int) -> None:
        """Change the expiration of producers, if it differs, and handle every partition again."""
        if ms == self._producer_expiration_ms:
            return
        self._producer_expiration_ms = ms
        for partition in self._partitions.all():
            self._schedule.touch(partition)

    async def run(self) -> None:
        """Handle due partitions until cancelled."""
        while True:
            await self._schedule.wait()
            await self.round()
            await self._clock.sleep(self._interval_ms / 1000)

    async def round(self) -> None:
        """Handle every partition that is due, once."""
        due = self._schedule.take_due(self._clock.wall_ms())
        writable = [partition for partition in due if partition.is_writable]
        if len(writable) < len(due):
            for partition in due:
                if not partition.is_writable:
                    self._schedule.forget(partition)  # if its move is cancelled, it is touched again
            self._partitions.notice_failures()
        await self._add_time_streams(writable)
        for partition in await self._owned.delete_unknown(writable):
            self._schedule.touch(partition)  # repeat until none is left
        for first in range(0, len(writable), PARTITIONS_PER_TURN):
            turn = writable[first : first + PARTITIONS_PER_TURN]
            await asyncio.gather(*(self._care_for_one(partition) for partition in turn))
            await self._clock.sleep(0)

    async def _care_for_one(self, partition: Partition) -> None:
        if not partition.is_writable:
            return
        try:
            await self._maintain(partition)
        except S3StreamError as error:
            if partition.is_writable:
                LOG.warning("maintenance of %s failed, retrying: %s", partition.identity, error)
                self._schedule.touch(partition)

    async def _maintain(self, partition: Partition) -> None:
        partition.producers.expire(self._clock.wall_ms() - self._producer_expiration_ms)
        await self._retain(partition)
        if not partition.log.is_trimmed(partition.log_start_offset):
            await partition.log.trim(partition.log_start_offset)
        if partition.meta_stream.needs_trim and not await partition.meta_stream.trim_rewritten():
            self._schedule.touch(partition)  # the rewrite is not in a committed object yet
        self._set_deadline(partition)

    async def _retain(self, partition: Partition) -> None:
        """Drop old or excess segments.

        Raises:
            S3StreamError: retry later.
        """
        if partition.identity.topic in INTERNAL_TOPICS:
            return  # the coordinators compact these topics themselves; retention does not apply
        log, now_ms = partition.log, self._clock.wall_ms()
        log.drop_before(partition.log_start_offset)  # deleted segments must not count for the size
        oldest = retention.extents(log, SEGMENTS_PER_LOOK)
        start = retention.retained_from(
            oldest, log.size_bytes, partition.high_watermark, partition.config, now_ms
        )
        if start <= partition.log_start_offset:
            return
        if start > log.log_meta.active.base_offset:
            log.roll(now_ms)
        await partition.advance_log_start(start)
        before_bytes = log.size_bytes
        log.drop_before(start)
        self._bytes_deleted.add(before_bytes - log.size_bytes)
        LOG.info("%s: retention moved the log start to %d", partition.identity, start)
        if len(oldest) == SEGMENTS_PER_LOOK and start == oldest[-1].end_offset:
            self._schedule.touch(partition)  # younger segments may be due as well

    async def _add_time_streams(self, partitions: list[Partition]) -> None:
        wanting = [partition for partition in partitions if partition.state.needs_time_stream]
        for partition in wanting[TIME_STREAMS_PER_ROUND_MAX:]:
            self._schedule.touch(partition)
        if not wanting:
            return
        try:
            await self._owned.add_time_streams(wanting[:TIME_STREAMS_PER_ROUND_MAX])
        except S3StreamError as error:
            LOG.warning("creation of Time streams failed, retrying: %s", error)

    def _set_deadline(self, partition: Partition) -> None:
        deadline_ms = retention.NEVER_MS
        if partition.identity.topic not in INTERNAL_TOPICS:
            deadline_ms = retention.next_due_ms(retention.extents(partition.log, 1), partition.config)
        silent_since_ms = partition.producers.oldest_ms
        if silent_since_ms is not None:
            deadline_ms = min(deadline_ms, silent_since_ms + self._producer_expiration_ms + 1)
        # A deadline in the past means that something is pending, such as an append that is not durable yet.
        self._schedule.at(partition, max(deadline_ms, self._clock.wall_ms() + self._interval_ms))
