"""Bounded reads from objects for Fetch: concurrency, size, rate and duration.

The bounds keep readers of old data from slowing producers and readers at the end of the log. Slots rotate
over the waiting fetches, so that a fetch of a thousand partitions does not block a fetch of one partition.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock
from ponor_runtime.rate_limit import NS, RateLimit
from ponor_runtime.telemetry import Telemetry
from s3stream.errors import ObjectCorruptError, S3StreamError

from ponor_broker.handlers.fetch.committed_reads import ReadRecords, from_objects
from ponor_broker.partitions.errors import PartitionError, storage_error
from ponor_broker.partitions.log.stream_port import StreamUnreadableError
from ponor_broker.partitions.partition import Partition
from ponor_broker.settings import BrokerSettings

LOG: Final = logging.getLogger("ponor.broker.fetch")
REPORTED_MAX: Final = 256
"""Distinct error lines that are remembered, so that each is logged once."""
BURST_MS: Final = 250
"""Reads may use at once the unused budget of this long."""


class FairSlots:
    """A semaphore whose slots rotate over the waiting owners; first come, first served within one owner."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiters: OrderedDict[object, deque[asyncio.Future[None]]] = OrderedDict()
        self.waiting = 0

    @asynccontextmanager
    async def slot(self, owner: object) -> AsyncIterator[None]:
        """Hold one slot."""
        await self._acquire(owner)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, owner: object) -> None:
        if self._free > 0:
            assert not self._waiters, "reads wait although a slot is free"
            self._free -= 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(owner, deque()).append(granted)
        self.waiting += 1
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._release()  # granted and cancelled in the same event-loop turn
            else:
                self._leave(owner, granted)
            raise

    def _leave(self, owner: object, granted: asyncio.Future[None]) -> None:
        queue = self._waiters.get(owner, deque())
        if granted in queue:  # otherwise `_release` has removed it already
            queue.remove(granted)
            self.waiting -= 1
            if not queue:
                del self._waiters[owner]

    def _release(self) -> None:
        while self._waiters:
            owner, queue = self._waiters.popitem(last=False)
            granted = queue.popleft()
            self.waiting -= 1
            if queue:
                self._waiters[owner] = queue  # to the end of the rotation
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1


class ColdReads:
    """Runs reads from objects within the bounds of the settings `cold_read…`."""

    def __init__(self, settings: BrokerSettings, *, clock: Clock, telemetry: Telemetry) -> None:
        self._settings = settings
        self._slots = FairSlots(settings.cold_reads_in_flight_max)
        self._clock = clock
        self._speed = RateLimit(settings.cold_read_bytes_per_s_max or math.inf, burst_s=BURST_MS / 1000)
        self._reported: dict[str, None] = {}
        self._begun = 0
        self._refused = telemetry.counter("ponor_cold_reads_refused_total")
        self._bytes = telemetry.counter("ponor_cold_read_bytes_total")
        telemetry.gauge("ponor_cold_reads", lambda: self._begun - self._slots.waiting, state="reading")
        telemetry.gauge("ponor_cold_reads", lambda: self._slots.waiting, state="waiting")

    async def read(
        self,
        owner: object,
        partition: Partition,
        offset: int,
        bytes_max: int,
        *,
        ms_max: int | None,
        committed: bool = False,
    ) -> ReadRecords | PartitionError:
        """Return whole batches from the one that contains `offset`, or the error.

        Args:
            owner: the fetch; slots rotate over owners.
            partition: the partition to read.
            offset: the first Kafka offset.
            bytes_max: size, at most `cold_read_bytes_max`.
            ms_max: given if the fetch has other data for its answer: after this time, return an empty list.
                The blocks of an abandoned read still arrive in the block cache, so the next read makes
                progress.
            committed: read with `read_committed`.
        """
        if self._slots.waiting >= self._settings.cold_reads_waiting_max:
            self._refused.add()
            return PartitionError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self._slots.waiting} reads of old data are waiting already; retry later",
            )
        self._begun += 1
        limit_ms = self._settings.cold_read_ms_max
        if ms_max is not None:
            limit_ms = min(ms_max, limit_ms)
        try:
            async with asyncio.timeout(limit_ms / 1000), self._slots.slot(owner):
                size_max = min(bytes_max, self._settings.cold_read_bytes_max)
                return await self._read(partition, offset, size_max, committed=committed)
        except TimeoutError as error:
            return storage_error(error) if ms_max is None else ReadRecords(())
        except (PartitionError, S3StreamError) as error:
            self._report(error)
            return storage_error(error)
        finally:
            self._begun -= 1

    async def _read(
        self, partition: Partition, offset: int, bytes_max: int, *, committed: bool
    ) -> ReadRecords:
        now_ns = self._clock.monotonic_ns()
        wait_ns = self._speed.wait_ns(now_ns)
        self._speed.charge(bytes_max, now_ns)
        read_bytes = 0
        try:
            if wait_ns:  # a reader that gives up during this wait does not delay the others
                await self._clock.sleep(wait_ns / NS)
            if committed:
                read = await from_objects(partition, offset, bytes_max)
            else:
                read = ReadRecords(await partition.read(offset, bytes_max))
            read_bytes = sum(len(record.payload) for record in read.records)
        finally:
            self._speed.give_back(max(bytes_max - read_bytes, 0))
        self._bytes.add(read_bytes)
        return read

    def _report(self, error: Exception) -> None:
        """Log damage and missing objects, which need an operator: once per message, not per retry
        of a consumer.
        """
        line = str(error)
        if not isinstance(error, ObjectCorruptError | StreamUnreadableError) or line in self._reported:
            return
        if len(self._reported) >= REPORTED_MAX:
            self._reported.clear()
        self._reported[line] = None
        LOG.error("cannot answer a Fetch: %s; check the objects with `ponor object verify`", line)
