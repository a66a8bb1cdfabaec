"""One cleaning of one partition.

    index the newest offset of each dirty key → rewrite the segments from the log start, group by group → the
    partition is clean up to the last indexed offset

A group of segments becomes one segment in the `.cleaned` streams. When that is durable, it replaces the group
in the segment list, and maintenance trims the group's slices. A crash, a move or an error at any point leaves
a log with the same content: at worst a group is rewritten again. If the map has no room for all keys, the
pass ends at the first record that does not fit, and the next pass continues there.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.record_batch import BatchView
from ponor_partition.errors import PartitionCorruptError
from ponor_partition.segment import TXN, Segment, Slice
from ponor_runtime.clock import Clock
from ponor_runtime.turns import Steps
from s3stream.errors import AppendBackpressureError
from s3stream.records import RECORD_COUNT_MAX

from ponor_broker.partitions.cleaning.cleanable import Cleanable, groups
from ponor_broker.partitions.cleaning.cleaned_segment import CleanedSegment
from ponor_broker.partitions.cleaning.keeping import Keeper, KeyIndex
from ponor_broker.partitions.cleaning.offset_map import OffsetMap
from ponor_broker.partitions.cleaning.pace import Pace
from ponor_broker.partitions.cleaning.record_scan import scan
from ponor_broker.partitions.cleaning.rewriting import KeptRecords, with_records, without_records
from ponor_broker.partitions.cleaning.transactions import OutcomeScan, TransactionTrail
from ponor_broker.partitions.partition import Partition

_T = TypeVar("_T")
READ_BYTES: Final = 1 << 20
"""Bytes of a read. A pass holds no more log data than one read and one decompressed batch."""


class CleaningStoppedError(Exception):
    """The partition closes, moves, or changed: completed groups stay, the rest is left for a later pass."""


@dataclass(frozen=True, slots=True)
class CleaningLimits:
    """Bounds of a pass. `decompressed_bytes_max` bounds one batch."""

    map_bytes_max: int
    decompressed_bytes_max: int


@dataclass(slots=True)
class CleaningReport:
    """Progress of a pass."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_removed: int = 0
    cleaned_to: int = 0


class CleaningPass:
    """One pass; `run` is called once. The `.cleaned` streams must be open."""

    def __init__(
        self, partition: Partition, cleanable: Cleanable, limits: CleaningLimits, clock: Clock, pace: Pace
    ) -> None:
        self._partition = partition
        self._log = partition.log
        self._config = partition.config
        self._cleanable = cleanable
        self._limits = limits
        self._clock = clock
        self._pace = pace
        self._offsets: OffsetMap | None = None
        self.report = CleaningReport(cleaned_to=cleanable.dirty_from)

    @property
    def map_bytes(self) -> int:
        """Current memory of the key map."""
        return 0 if self._offsets is None else self._offsets.size_bytes

    async def run(self) -> None:
        """Clean. `report` contains the progress, also after an error.

        Raises:
            S3StreamError: retry later.
            CleaningStoppedError: retry later, if the partition still serves.
            PartitionCorruptError: a batch cannot be read or processed; a retry will not help.
        """
        trims = self._log.trims
        assert not trims.is_cleaning, f"{self._partition.identity} is already being cleaned"
        trims.is_cleaning = True
        self._pace.begin()
        try:
            index = await self._index()
            await self._rewrite_all(index)
        except KafkaWireError as error:
            raise PartitionCorruptError(f"{self._partition.identity}: {error}") from error
        finally:
            trims.is_cleaning = False

    # Index of the newest record per key

    async def _index(self) -> KeyIndex:
        """Index the dirty part up to the first open transaction, or until the map is full."""
        begin, end = self._cleanable.dirty_from, self._cleanable.end
        self._offsets = OffsetMap(self._limits.map_bytes_max, end - begin)
        index = KeyIndex(self._offsets, begin, begin - 1)
        trail: TransactionTrail | None = None
        async with aclosing(self._batches(begin, end)) as batches:
            async for batch in batches:
                if trail is None and (batch.is_transactional or batch.is_control):
                    outcomes = await self._outcomes(batch.base_offset, end)
                    end = end if outcomes.open_from is None else outcomes.open_from
                    index.aborted, trail = outcomes.aborted, TransactionTrail(outcomes.aborted)
                if batch.base_offset >= end:
                    break
                is_void = trail is not None and trail.may_discard(batch)
                if not (is_void or batch.is_control) and not await self._index_batch(index, batch, begin):
                    break
                index.last_offset = max(index.last_offset, batch.last_offset)
        return index

    async def _index_batch(self, index: KeyIndex, batch: BatchView, begin: int) -> bool:
        """Index the batch's records from offset `begin` on. Return False if a record did not fit;
        `index.last_offset` then is the offset of the record before it.
        """
        with self._processing(batch):
            for record in scan(self._data(batch), batch.record_count):
                offset = batch.base_offset + record.offset_delta
                if record.key is not None and offset >= begin and not index.offsets.put(record.key, offset):
                    return False
                index.last_offset = max(index.last_offset, offset)
                if self._pace.step():
                    await self._pace.rest()
        return True

    async def _outcomes(self, begin: int, end: int) -> OutcomeScan:
        outcomes = OutcomeScan()
        async for batch in self._batches(begin, end):
            outcomes.see(batch)
        return outcomes

    # The new segments

    async def _rewrite_all(self, index: KeyIndex) -> None:
        last_offset = index.last_offset
        if last_offset < self._cleanable.dirty_from:
            return  # an open transaction begins at the start of the dirty part
        keeper = Keeper(
            index,
            self._is_last_of_producer,
            now_ms=self._clock.wall_ms(),
            delete_retention_ms=self._config.delete_retention_ms,
        )
        segments = [
            segment
            for segment in self._log.log_meta.segments[:-1]
            if segment.end_offset > self._cleanable.start and segment.base_offset <= last_offset
        ]
        for group in groups(segments, self._config.segment_bytes, RECORD_COUNT_MAX):
            await self._rewrite(group, keeper)
        self._check()
        self._log.note_cleaned_to(last_offset + 1)
        self.report.cleaned_to = last_offset + 1

    async def _rewrite(self, group: list[Segment], keeper: Keeper) -> None:
        base_offset, end_offset = group[0].base_offset, group[-1].end_offset
        out = CleanedSegment(
            self._log, self._clock, base_offset, created_ms=group[0].created_ms, txn=_txn_slice(group)
        )
        begin = max(base_offset, self._partition.log_start_offset)
        async with aclosing(self._batches(begin, end_offset)) as batches:
            async for batch in batches:
                with self._processing(batch):
                    kept = batch if keeper.is_untouched(batch) else await self._kept(keeper, batch)
                if kept is not None:
                    await out.add(kept)
                    self._pace.moved(kept.size_bytes)
                    self.report.bytes_written += kept.size_bytes
        await self._commit(group, await out.finish(end_offset))

    async def _kept(self, keeper: Keeper, batch: BatchView) -> BatchView | None:
        """Return what remains of the batch: all, a batch with fewer records, only the header, or None."""
        verdict = keeper.judge(batch)
        kept = KeptRecords()
        has_tombstones = False
        data = b""
        if not verdict.drops_records and batch.record_count:
            data = self._data(batch)
            for record in scan(data, batch.record_count):
                if keeper.keeps(batch, record):
                    kept.add(record)
                    has_tombstones = has_tombstones or not record.has_value
                if self._pace.step():
                    await self._pace.rest()
        self.report.records_removed += batch.record_count - len(kept)
        if not kept:
            return without_records(batch) if verdict.keeps_header else None
        horizon_ms = keeper.new_horizon_ms(
            batch, has_tombstones=has_tombstones, is_idle_marker=verdict.is_idle_marker
        )
        if len(kept) == batch.record_count and horizon_ms is None:
            return batch
        return await self._paced(with_records(batch, data, kept, horizon_ms))

    async def _paced(self, steps: Steps[_T]) -> _T:
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: _T = done.value
                return result
            if self._pace.step():
                await self._pace.rest()

    async def _commit(self, group: list[Segment], cleaned: Segment) -> None:
        """Replace the group by the cleaned segment. Write the checkpoint first, so that an open of the
        partition never has to read removed batches.
        """
        self._check()
        while self._partition.before_upload():
            await self._pace.rest()
            self._check()
        segments = self._log.log_meta.segments
        if [
            segment for segment in segments if cleaned.base_offset <= segment.base_offset < cleaned.end_offset
        ] != group:
            raise CleaningStoppedError("the partition's oldest segments were dropped during the pass")
        if self._partition.recovers_from is not None:
            raise AppendBackpressureError("the Meta stream refused the checkpoint")
        await self._log.clean(cleaned)

    @contextmanager
    def _processing(self, batch: BatchView) -> Iterator[None]:
        """Turn each error of a computation on a batch into PartitionCorruptError. Otherwise a damaged batch
        would stop this broker, and then every broker to which the partition moves.
        """
        try:
            yield
        except (ValueError, ArithmeticError, struct.error) as error:
            raise PartitionCorruptError(
                f"{self._partition.identity}: the batch at offset {batch.base_offset}: {error}"
            ) from error

    # Reading

    async def _batches(self, offset: int, end: int) -> AsyncGenerator[BatchView, None]:
        """Yield the batches up to `end`, in steps; the first contains `offset`."""
        while offset < end:
            self._check()
            records = await self._log.read(offset, READ_BYTES)
            self._pace.begin()
            for record in records:
                batch = BatchView(memoryview(record.payload))
                offset = batch.next_offset
                if batch.base_offset >= end:
                    return
                self._pace.moved(batch.size_bytes)
                self.report.bytes_read += batch.size_bytes
                yield batch
                if self._pace.step():
                    await self._pace.rest()
            await self._pace.rest()

    def _data(self, batch: BatchView) -> bytes:
        data = batch.uncompressed(self._limits.decompressed_bytes_max)
        return data if isinstance(data, bytes) else bytes(data)

    def _is_last_of_producer(self, batch: BatchView) -> bool:
        entry = self._partition.producers.entry(batch.producer_id)
        return any(taken.end_offset == batch.next_offset for taken in entry.batches[-1:]) if entry else False

    def _check(self) -> None:
        if not self._partition.is_writable:
            raise CleaningStoppedError("the partition is closing or moving")
        if not self._partition.config.is_compacted:
            raise CleaningStoppedError("the topic's cleanup.policy changed")


def _txn_slice(group: list[Segment]) -> Slice | None:
    """Return the Txn slices of neighbouring segments as one; None if all segments precede the Txn stream."""
    slices = [part for segment in group if (part := segment.slice(TXN)) is not None]
    return Slice(slices[0].start, slices[-1].end) if slices else None
