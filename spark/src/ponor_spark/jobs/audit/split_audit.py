"""Audit of one split in a task: every block, batch and row.

It reads as the source does (the same objects, the same checks of blocks and batches), but records damage as a
finding and continues with the next run. Each batch is read twice: its header gives the covered offsets and
the number of records, and the decoded rows must match them.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import pyarrow as pa
from ponor_kafka.errors import KafkaWireError
from ponor_kafka.record_batch import BatchView
from s3stream.objects.format import BlockEntry

from ponor_spark.clip import AbortedRange, Clip
from ponor_spark.decode.batches import BatchDecoder
from ponor_spark.decode.block_records import BlockRecords, PlacedBatch
from ponor_spark.errors import SnapshotExpiredError, StoredDataError
from ponor_spark.jobs.audit.findings import PartitionFindings
from ponor_spark.jobs.audit.row_digest import COLUMNS, digest_batch
from ponor_spark.object_reading import ObjectReader
from ponor_spark.object_source import ObjectSource, open_object_source
from ponor_spark.option_values import INT64_MAX
from ponor_spark.split import ObjectRun, Split


def audit_split(
    split: Split, *, with_digest: bool, source: ObjectSource | None = None
) -> list[PartitionFindings]:
    """Return findings by partition.

    Args:
        split: from `planning.plan`.
        with_digest: also digest the rows' contents; takes twice as long.
        source: reads the objects; by default the split's store.

    Raises:
        SnapshotExpiredError: an object is missing because the lease has ended, so nothing is proven.
        ClusterUnreachableError: the store refuses this executor.
    """
    reader = ObjectReader(source or open_object_source(split.object_store), lease_id=split.lease_id)
    found: dict[tuple[str, int], PartitionFindings] = {}
    for run in split.runs:
        findings = found.setdefault(
            (run.clip.topic, run.clip.partition), PartitionFindings(run.clip.topic, run.clip.partition)
        )
        try:
            for read, blocks in reader.runs([run]):
                _audit_run(read, blocks, findings, with_digest=with_digest)
        except SnapshotExpiredError:
            raise
        except StoredDataError as error:
            findings.problem(str(error))
    return list(found.values())


def _audit_run(
    run: ObjectRun, blocks: Sequence[memoryview], findings: PartitionFindings, *, with_digest: bool
) -> None:
    columns = COLUMNS if with_digest else ("offset",)
    for entry, block in zip(run.blocks(), blocks, strict=True):
        findings.size_bytes += len(block)
        placed = list(_batches(BlockRecords(block, run.kafka_shift, run.clip)))
        for batch in placed:
            findings.cover(
                max(batch.start_offset, run.clip.start_offset), min(_end(batch), run.clip.end_offset)
            )
        decoder = BatchDecoder(columns, clip=run.clip, aborted=run.aborted)
        decoder.feed_block(block, run.kafka_shift)
        offsets: list[int] = []
        for rows in _all_rows(decoder):
            offsets.extend(rows.column("offset").to_pylist())
            if with_digest:
                findings.digest += digest_batch(rows)
        _check_order(offsets, findings)
        _check_times(run, entry, block, len(offsets), findings)
        findings.rows += len(offsets)
        for batch in placed:
            _audit_batch(batch, offsets, run.clip, run.aborted, findings)


def _batches(records: BlockRecords) -> Iterator[PlacedBatch]:
    while (placed := records.next()) is not None:
        yield placed


def _all_rows(decoder: BatchDecoder) -> Iterator[pa.RecordBatch]:
    yield from decoder.take()
    yield from decoder.finish()


def _end(batch: PlacedBatch) -> int:
    assert batch.end_offset is not None, "a batch of a block must have an end offset"
    return batch.end_offset


def _check_order(offsets: Sequence[int], findings: PartitionFindings) -> None:
    for before, after in itertools.pairwise(offsets):
        if after <= before:
            findings.problem(f"{findings.name}: offset {after} follows offset {before}")
            return


def _check_times(
    run: ObjectRun, entry: BlockEntry, block: memoryview, rows: int, findings: PartitionFindings
) -> None:
    """Check that no row is below the block's smallest timestamp in the index: a query up to a time would
    miss such a row. No checksum covers this timestamp.
    """
    if not entry.spread:
        return
    times = (entry.min_timestamp_ms, INT64_MAX)
    decoder = BatchDecoder(("offset",), clip=run.clip, aborted=run.aborted, time_range_ms=times)
    decoder.feed_block(block, run.kafka_shift)
    earlier = rows - sum(each.num_rows for each in _all_rows(decoder))
    if earlier:
        findings.problem(
            f"{findings.name}: {earlier} rows of the block at offset {entry.start_offset + run.kafka_shift}"
            f" are earlier than {times[0]} ms, the minimum in the index of object {run.key}"
        )


def _audit_batch(
    batch: PlacedBatch,
    offsets: Sequence[int],
    clip: Clip,
    aborted: Sequence[AbortedRange],
    findings: PartitionFindings,
) -> None:
    """Compare a batch's header with its rows.

    If the range cuts the batch, rows are missing, so only their positions are checked.
    """
    start, end = batch.start_offset, _end(batch)
    try:
        header = BatchView(batch.data)
    except KafkaWireError as error:
        findings.problem(f"{findings.name}: the batch at offset {start}: {error}")
        return
    findings.batches += 1
    rows = bisect_left(offsets, end) - bisect_left(offsets, start)
    if header.is_control:
        findings.control_batches += 1
        expected = 0
    elif (
        any(
            each.producer_id == header.producer_id and each.first_offset <= end - 1 <= each.last_offset
            for each in aborted
        )
        and header.is_transactional
    ):
        findings.aborted_batches += 1
        findings.aborted_records += header.record_count
        expected = 0
    else:
        expected = header.record_count
        if end - start != expected:
            findings.hole(start, end - start - expected)
    is_whole = clip.start_offset <= start and end <= clip.end_offset
    if rows != expected and is_whole:
        findings.problem(
            f"{findings.name}: the batch at offset {start} has {expected} records, but was decoded to"
            f" {rows} rows"
        )
