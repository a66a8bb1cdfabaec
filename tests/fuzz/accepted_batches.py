"""Everything that reads a produced batch later: no batch that Produce accepts may stop any of it.

An accepted batch is stored unchanged, and each broker to which its partition moves reads it again. So an
error that the reader does not handle per batch would stop one broker after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ponor_broker.handlers.fetch.committed_reads import from_objects
from ponor_broker.handlers.offsets import offset_lookup
from ponor_broker.partitions.batch_validation import BatchValidator
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.in_flight import settled_future
from ponor_broker.partitions.maintenance import retention
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_transactions import TransactionMarker
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_kafka.plain_produce import walk_plain_batch
from ponor_kafka.record_batch import NO_TIMESTAMP, BatchView
from ponor_kafka.record_rules import INT64_MAX, INT64_MIN
from ponor_kafka.records import scan_records
from ponor_runtime.identity import ObjectId
from ponor_spark.clip import Clip
from ponor_spark.decode import kernel
from ponor_spark.decode.batches import BatchDecoder
from ponor_spark.decode.schema import FULL, HEADERS, TIMESTAMP
from s3stream.objects.block import decode_block
from s3stream.objects.format import FOOTER_BYTES
from s3stream.objects.index import decode_footer, decode_index
from s3stream.objects.joining import joined_blocks
from s3stream.objects.writer import ObjectWriter
from s3stream.records import StreamRecord

from services.broker.tests.partition_rig import PartitionRig
from services.broker.tests.partitions.cleaning.cleaning_kit import COMPACTED, CleaningRig
from spark.tests import kernel_oracle
from tests.fuzz.hostile_batches import NOW_MS, TIMES

DECOMPRESSED_BYTES_MAX: Final = 1 << 20
VERSION: Final = 12
OBJECT_ID: Final = ObjectId(7)
BLOCK_BYTES_MAX: Final = 600
_ANY_TIME: Final = replace(COMPACTED, timestamp_after_ms_max=INT64_MAX)
CONFIGS: Final = (
    COMPACTED,
    _ANY_TIME,
    replace(_ANY_TIME, is_log_append_time=True),
    *(replace(_ANY_TIME, compression=name) for name in ("uncompressed", "gzip", "snappy", "lz4", "zstd")),
)


class Row(NamedTuple):
    """A record without its deltas and attributes, which the cleaner may change."""

    offset: int
    timestamp: int
    content: bytes


class AcceptedBatches:
    """One compacted partition; `run` is called once."""

    def __init__(self, config: TopicConfig = _ANY_TIME) -> None:
        self._config = config
        self._validator = BatchValidator(decompressed_batch_bytes_max=DECOMPRESSED_BYTES_MAX)
        self._one = CleaningRig(rig=PartitionRig(config=config))
        self._one.rig.clock.now_ms = NOW_MS
        self.accepted = 0

    async def run(self, batches: Iterable[bytes]) -> None:
        """Append the batches that Produce accepts, and let every reader read them."""
        partition = await self._one.open()
        transactions: set[tuple[int, int]] = set()
        for number, batch in enumerate(batches):
            if self._append(partition, batch, transactions) and number % 2:
                self._one.roll()
        await self._read(partition)
        partition = await self._one.open()  # replays the batches
        await self._read(partition)
        for producer_id, epoch in sorted(transactions):
            await self._end(partition, producer_id, epoch, commits=producer_id % 2 == 0)
        await self._clean(partition)
        partition.before_upload()
        partition.write_clean_checkpoint(whole=True)
        await self._read(await self._one.open())

    def _append(self, partition: Partition, sent: bytes, transactions: set[tuple[int, int]]) -> bool:
        frame = bytearray(sent)
        try:
            batch, min_timestamp = self._validator.validate(memoryview(frame), VERSION, self._config, NOW_MS)
        except PartitionError:
            return False
        self._check_plain_path(sent, batch, min_timestamp)
        batch.check_crc()
        assert all(row.timestamp >= min_timestamp for row in _rows(batch))
        producer = (batch.producer_id, batch.producer_epoch)
        proof = None
        if batch.is_transactional:
            proof = partition.transactions.begin_verification(*producer, generation=1)
        try:
            partition.append(batch, NOW_MS, _no_failure, min_timestamp=min_timestamp, verification=proof)
        except PartitionError:
            return False
        if batch.is_transactional:
            transactions.add(producer)
        self.accepted += 1
        return True

    def _check_plain_path(self, sent: bytes, batch: BatchView, min_timestamp: int) -> None:
        """Check that both paths of Produce agree on a batch that needs no changes."""
        if BatchView(memoryview(sent)).attributes == 0 and bytes(batch.view) == sent:
            walked = walk_plain_batch(bytearray(sent), 0, len(sent))
            assert walked == (batch.max_timestamp, min_timestamp, False)

    async def _end(self, partition: Partition, producer_id: int, epoch: int, *, commits: bool) -> None:
        marker = TransactionMarker(producer_id, epoch, 0, commits)
        if partition.transactions.needs_stream(marker):
            await self._one.rig.owned.add_txn_stream(partition)
        try:
            durable, settled = settled_future()
            partition.append_marker(marker, settled)
            await durable
        except PartitionError:
            return

    # Readers

    async def _read(self, partition: Partition) -> list[Row]:
        await asyncio.sleep(0)
        start, end = partition.log_start_offset, partition.high_watermark
        await from_objects(partition, start, 1 << 20)
        for timestamp in TIMES:
            found = await offset_lookup.first_at_or_after(partition, timestamp)
            assert found is None or (found.timestamp >= timestamp and start <= found.offset < end)
        await offset_lookup.largest(partition)
        self._retain(partition)
        records: list[StreamRecord] = []
        offset = start
        while offset < end:
            some = await partition.read(offset, 1 << 20)
            records += some
            offset = BatchView(memoryview(some[-1].payload)).next_offset
        if not records:
            return []
        self._upload(records)
        rows: list[Row] = []
        for record in records:
            batch = BatchView(memoryview(record.payload))
            batch.check_crc()
            found_rows = list(_rows(batch))
            # Searches by time decompress each batch whose header reaches their time, and must find a record.
            newest = max((row.timestamp for row in found_rows), default=batch.max_timestamp)
            assert batch.max_timestamp == NO_TIMESTAMP or 0 <= batch.max_timestamp <= newest
            self._decode_for_spark(record, batch, found_rows)
            rows += found_rows
        return rows

    def _retain(self, partition: Partition) -> None:
        segments = retention.extents(partition.log, 1_000)
        for config in (self._config, replace(self._config, deletes_old=True, retention_ms=INT64_MAX)):
            retention.retained_from(
                segments, partition.log.size_bytes, partition.high_watermark, config, NOW_MS
            )
            retention.next_due_ms(segments, config)

    def _upload(self, records: Sequence[StreamRecord]) -> None:
        """Write an object as an upload does, read it, and join its blocks as a compaction does."""
        for stream_id in sorted({record.stream_id for record in records}):
            some = [record for record in records if record.stream_id == stream_id]
            writer = ObjectWriter(OBJECT_ID, block_bytes_max=BLOCK_BYTES_MAX)
            for record in some:
                writer.add(record)
            content = b"".join(writer.finish().buffers)
            footer = decode_footer("fuzz", OBJECT_ID, content[-FOOTER_BYTES:], len(content))
            index = content[footer.index_position : -FOOTER_BYTES]
            entries = list(decode_index("fuzz", footer, index))
            for entry in (*entries, *joined_blocks(entries, 1 << 20)):
                entry.encode()
                block = content[entry.position : entry.position + entry.size_bytes]
                decode_block("fuzz", entry, block)

    def _decode_for_spark(self, record: StreamRecord, batch: BatchView, rows: list[Row]) -> None:
        if batch.is_control:
            return
        block = record.encode_header() + bytes(record.payload)
        shift = batch.next_offset - record.end_offset
        columns = [name for name in (*FULL.names, HEADERS) if name != TIMESTAMP]
        if all(abs(row.timestamp) <= INT64_MAX // 1000 for row in rows):
            columns.append(TIMESTAMP)  # Spark's timestamps are microseconds
        tables: list[list[Any]] = []
        for builder in (kernel.RowBuilder, kernel_oracle.RowBuilder):
            decoder = BatchDecoder(
                columns,
                clip=Clip("fuzz", 0, 0, INT64_MAX),
                decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
                kernel=builder,  # type: ignore[arg-type]
            )
            decoder.feed_block(block, shift)
            arrow = list(decoder.finish())
            for one in arrow:
                one.validate(full=True)
            tables.append(arrow)
        assert tables[0] == tables[1]
        offsets = [offset for one in tables[0] for offset in one.column("offset").to_pylist()]
        assert offsets == [row.offset for row in rows]

    # Compaction

    async def _clean(self, partition: Partition) -> None:
        one = self._one
        before = await self._read(partition)
        for _ in range(3):  # with the third, tombstones and markers are past their horizon
            if partition.log_end_offset > partition.log.log_meta.active.base_offset:
                one.roll()
            await one.append([(NOW_MS, b"clean", b"")])
            await one.clean()
            failed = one.telemetry.counter("ponor_cleaner_passes_total", result="failed")
            assert failed.value == 0
            one.rig.clock.now_ms += 2_000
        assert partition.log.log_meta.cleaned_to > 0 or partition.last_stable_offset == 0
        after = await self._read(partition)
        assert {row for row in after if row.offset < len(before)} <= set(before)


def _no_failure(failure: BaseException | None) -> None:
    assert failure is None


def _rows(batch: BatchView) -> Iterable[Row]:
    if not batch.record_count:
        return
    data = bytes(batch.uncompressed(DECOMPRESSED_BYTES_MAX))
    for bounds in scan_records(data, batch.record_count):
        timestamp = batch._timestamp(bounds)
        assert INT64_MIN <= timestamp <= INT64_MAX
        yield Row(batch.base_offset + bounds.offset_delta, timestamp, data[bounds.key_position : bounds.end])
