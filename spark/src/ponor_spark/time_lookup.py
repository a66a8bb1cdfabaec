"""Look up the Kafka offset of a time in objects: the first record of a partition whose timestamp is at
or after that time.

Each segment and each index entry stores the largest timestamp of its records, so the lookup skips segments
and blocks that end before the time. In the first block that may match, it searches the records of the
first batch that reaches the time (docs/formats/partition-meta.md, "Time entries", describes the broker's
lookup).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.record_batch import BatchView
from ponor_runtime.identity import StreamId
from s3stream.objects.format import BlockEntry
from s3stream.records import StreamRecord

from ponor_spark.errors import StoredDataError
from ponor_spark.object_indexes import ObjectIndexes, place_of
from ponor_spark.snapshot import PartitionSnapshot, SegmentSlice, Snapshot

BATCH_BYTES_MAX: Final = 1 << 30
"""Maximum decompressed bytes of one batch."""


def find_time(
    snapshot: Snapshot, partition: PartitionSnapshot, timestamp_ms: int, indexes: ObjectIndexes
) -> int | None:
    """Return the Kafka offset of the first committed record at or after a time; None if there is none.

    Raises:
        PonorSparkError: an object cannot be read.
    """
    for part in partition.segments:
        if part.max_timestamp_ms is not None and part.max_timestamp_ms < timestamp_ms:
            continue
        for key, entry in _blocks_of(snapshot, part, timestamp_ms, indexes):
            (block,) = indexes.read_blocks([(key, entry)])
            for record in block.records_from(part.base_offset - part.kafka_shift):
                found = _find_in(record, part, timestamp_ms, f"{partition.topic}-{partition.partition}")
                if found is not None:
                    return found
    return None


def _blocks_of(
    snapshot: Snapshot, part: SegmentSlice, timestamp_ms: int, indexes: ObjectIndexes
) -> Iterator[tuple[str, BlockEntry]]:
    start, end = part.base_offset - part.kafka_shift, part.end_offset - part.kafka_shift
    pieces = list(snapshot.pieces_of(part.stream_id, start, end))
    places = [place_of(snapshot.namespaces, piece) for piece in pieces]
    for piece, index in zip(pieces, indexes.read(places, until_found=True), strict=True):
        first, last = max(start, piece.start_offset), min(end, piece.end_offset)
        for entry in index.blocks_of(StreamId(part.stream_id), first, last):
            if entry.max_timestamp_ms >= timestamp_ms:
                yield index.key, entry


def _find_in(record: StreamRecord, part: SegmentSlice, timestamp_ms: int, where: str) -> int | None:
    behind = record.end_offset + part.kafka_shift
    if record.max_timestamp < timestamp_ms or behind <= part.base_offset:
        return None
    try:
        batch = BatchView(memoryview(record.payload))
        if batch.is_control or batch.record_count == 0:
            return None
        # In a cleaned stream the record also covers the gap before the batch, so only the end offsets agree.
        shift = behind - batch.next_offset
        found = batch.find_timestamp(timestamp_ms, BATCH_BYTES_MAX, part.base_offset - shift)
    except KafkaWireError as error:
        raise StoredDataError(f"{where}: the batch that ends at {behind} is damaged: {error}") from error
    return None if found is None or found[0] + shift >= part.end_offset else found[0] + shift
