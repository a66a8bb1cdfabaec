"""Iterate over the records of a data block of a partition's Data stream, as batches with their Kafka offsets.

This module converts stream offsets to Kafka offsets and checks the order of records. The reader has already
verified the block's bytes (docs/formats/object.md), and the index gives its stream.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ponor_kafka.errors import KafkaWireError
from ponor_kafka.record_rules import INT64_MAX
from s3stream.records import RECORD_COUNT_MAX, RECORD_HEADER, RECORD_HEADER_BYTES

from ponor_spark.clip import Clip
from ponor_spark.decode.errors import CorruptBatchError, corrupt

_UNPACK: Final = RECORD_HEADER.unpack_from


class PlacedBatch(NamedTuple):
    """A batch that covers the Kafka offsets [start_offset, end_offset), including the gap before it in a
    `.cleaned` stream.

    `end_offset` is None if only the first offset is known; the batch then ends at its last offset delta.
    """

    data: memoryview
    start_offset: int
    end_offset: int | None

    def base_offset(self, last_offset_delta: int) -> int:
        """Return the Kafka offset of the record with offset delta 0.

        Raises:
            KafkaWireError: the batch has more offsets than its record covers.
        """
        end = self.start_offset + last_offset_delta + 1 if self.end_offset is None else self.end_offset
        base = end - last_offset_delta - 1
        if last_offset_delta < 0 or base < self.start_offset or end > INT64_MAX:
            place = f"the offsets [{self.start_offset}, {end})"
            raise KafkaWireError(
                f"the batch has last offset delta {last_offset_delta}, which does not fit into {place}"
            )
        return base


class BlockRecords:
    """Iterates over the records of a block that overlap the clip; other records are skipped unread."""

    def __init__(self, block: memoryview, kafka_shift: int, clip: Clip) -> None:
        self.block: Final = block
        self.kafka_shift: Final = kafka_shift
        self.clip: Final = clip
        self.at = 0
        """Position of the next record."""
        self.expected = -1
        """Stream offset of the next record; -1 before the first record."""

    def next(self) -> PlacedBatch | None:
        """Return the next batch that overlaps the clip; None at the end.

        Raises:
            CorruptBatchError: a record violates a rule.
        """
        size = len(self.block)
        while self.at < size:
            at = self.at + RECORD_HEADER_BYTES
            if at > size:
                raise self._broken(max(self.expected, 0), f"{size - self.at} bytes remain in the block")
            _, _, stream_offset, _, count, payload_bytes = _UNPACK(self.block, self.at)
            # Negative for records of an earlier cleaning in the block; no segment and no clip includes them.
            start = stream_offset + self.kafka_shift
            end = start + count
            if (
                not 1 <= count <= RECORD_COUNT_MAX
                or not 0 <= stream_offset <= INT64_MAX - count
                or payload_bytes > size - at
            ):
                rule = f"count {count} and {payload_bytes} bytes, but {size - at} bytes remain in the block"
                raise self._broken(stream_offset, rule)
            if stream_offset != self.expected >= 0:
                raise self._broken(
                    stream_offset, f"stream offset {stream_offset} where {self.expected} belongs"
                )
            if start >= self.clip.end_offset:
                return None
            self.at, self.expected = at + payload_bytes, stream_offset + count
            if end > self.clip.start_offset:
                return PlacedBatch(self.block[at : self.at], start, end)
        return None

    def _broken(self, stream_offset: int, rule: str) -> CorruptBatchError:
        clip = self.clip
        return corrupt(clip.topic, clip.partition, stream_offset + self.kafka_shift, f"record header: {rule}")
