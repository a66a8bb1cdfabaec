"""Writer of one cleaned segment to the `.cleaned` streams of a partition.

Stream offsets advance like Kafka's: a stream record also covers the hole before its batch, and a hole at the
end becomes an empty batch. Kept records 1, 2, 4 of offsets [0, 5) become {0, 2}, {2, 1}, {3, 2} (stream
offset, count). The output becomes part of the log by `PartitionLog.clean`; abandoned output is trimmed later.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ponor_kafka.record_batch import BatchView
from ponor_partition.segment import CLEANED, DATA, TIME, TXN, Content, Segment, Slice
from ponor_runtime.clock import Clock
from s3stream.errors import AppendBackpressureError, S3StreamError
from s3stream.records import RECORD_COUNT_MAX

from ponor_broker.partitions.cleaning.rewriting import padding
from ponor_broker.partitions.log.partition_log import PartitionLog
from ponor_broker.partitions.log.stream_port import PartitionStream, observe
from ponor_broker.partitions.log.time_index import TIME_ENTRY

IN_FLIGHT_BYTES_MAX: Final = 1 << 20
"""Bytes that the cleaner appends before it waits for the write-ahead log: appends of producers never wait for
more than this many bytes of the cleaner.
"""
TIME_ENTRY_EVERY_BYTES: Final = 256 << 10
FULL_RETRY_S: Final = 0.25
FULL_RETRIES_MAX: Final = 240


class BatchTooLargeError(S3StreamError):
    """A stored batch does not fit into this broker's write-ahead log or log cache: it was accepted
    under larger settings, or grew when it was rewritten. The message names the settings.
    """


class CleanedSegment:
    """Accepts the batches of the Kafka offsets from `base_offset` on; only tests lower `count_max`."""

    def __init__(
        self,
        log: PartitionLog,
        clock: Clock,
        base_offset: int,
        *,
        created_ms: int,
        txn: Slice | None = None,
        count_max: int = RECORD_COUNT_MAX,
    ) -> None:
        """`txn`: the Txn slices of the segments that this segment replaces."""
        self._clock = clock
        self._base_offset = base_offset
        self._created_ms = created_ms
        self._txn = txn
        self._count_max = count_max
        self._data: PartitionStream = log.streams[DATA + CLEANED]
        self._time: PartitionStream = log.streams[TIME + CLEANED]
        self._data_start = self._data.next_offset
        self._time_start = self._time.next_offset
        self._leader_epoch = -1
        self._end_offset = base_offset
        self._durable: asyncio.Future[None] | None = None
        self._in_flight_bytes = 0
        self._unindexed_bytes = 0
        self._indexed_timestamp = -1
        self.content = Content()
        """Content of the batches with records; the size includes padding."""

    async def add(self, batch: BatchView) -> None:
        """Append the next kept batch.

        Raises:
            S3StreamError: a stream refused the batch for too long.
        """
        assert batch.base_offset >= self._end_offset, (
            f"the batch at offset {batch.base_offset} begins below the end {self._end_offset}"
        )
        self._leader_epoch = batch.leader_epoch
        await self._pad(batch.base_offset, room=batch.last_offset_delta + 1)
        await self._append(batch)

    async def finish(self, end_offset: int) -> Segment:
        """Complete the segment at `end_offset`; return it when all of it is durable.

        Raises:
            S3StreamError: as `add`.
        """
        await self._pad(end_offset, room=self._count_max)
        await self._settled()
        return Segment(
            self._base_offset,
            CLEANED,
            (
                (DATA, Slice(self._data_start, self._data.next_offset)),
                (TIME, Slice(self._time_start, self._time.next_offset)),
                *(() if self._txn is None else ((TXN, self._txn),)),
            ),
            self._created_ms,
            self.content,
        )

    async def _pad(self, end_offset: int, *, room: int) -> None:
        """Append empty batches for the hole below `end_offset`, but not for its last part. The next stream
        record covers `room` offsets of its own and as many offsets of the hole as fit into it.
        """
        while (hole := end_offset - self._end_offset) > self._count_max - room:
            await self._append(padding(self._end_offset, min(hole, self._count_max), self._leader_epoch))

    async def _append(self, batch: BatchView) -> None:
        size_bytes = batch.size_bytes
        max_timestamp = batch.max_timestamp if batch.record_count else -1
        count = batch.next_offset - self._end_offset
        await self._put(self._data, bytes(batch.view), count, max_timestamp)
        self._end_offset = batch.next_offset
        largest, largest_offset = self.content.max_timestamp, self.content.max_timestamp_offset
        if max_timestamp > largest:
            largest, largest_offset = max_timestamp, batch.base_offset
        self.content = Content(self.content.size_bytes + size_bytes, largest, largest_offset)
        self._unindexed_bytes += size_bytes
        if self._unindexed_bytes >= TIME_ENTRY_EVERY_BYTES and largest > self._indexed_timestamp:
            await self._put(self._time, TIME_ENTRY.pack(largest, largest_offset), 1, largest)
            self._unindexed_bytes, self._indexed_timestamp = 0, largest
        self._in_flight_bytes += size_bytes
        if self._in_flight_bytes >= IN_FLIGHT_BYTES_MAX:
            await self._settled()

    async def _put(self, stream: PartitionStream, payload: bytes, count: int, max_timestamp: int) -> None:
        for _ in range(FULL_RETRIES_MAX):
            try:
                self._durable = stream.append(payload, count=count, max_timestamp=max_timestamp)
            except AppendBackpressureError:
                await self._clock.sleep(FULL_RETRY_S)  # producers have priority
            except ValueError as error:
                raise BatchTooLargeError(
                    f"stream {stream.stream_id}, a batch of {len(payload)} bytes: {error}"
                ) from error
            else:
                observe(self._durable)
                return
        raise AppendBackpressureError(
            f"stream {stream.stream_id} refused the cleaner's appends for"
            f" {FULL_RETRIES_MAX * FULL_RETRY_S:.0f} s"
        )

    async def _settled(self) -> None:
        """Wait until everything appended is durable: both streams share one write-ahead log, so
        waiting for the last append suffices.
        """
        if self._durable is not None:
            await asyncio.shield(self._durable)
        self._in_flight_bytes = 0
