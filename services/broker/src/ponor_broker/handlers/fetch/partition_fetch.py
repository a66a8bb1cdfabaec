"""One partition of one reader's fetch: request fields, result of the last pass, and last reported values.

A pass (`fetch_reading`) sets the result, and a fetch session (`fetch_session`) keeps the object between
requests. The object is also the partition's row in the answer, so that nothing is copied.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.fetch_response import FetchedPartition
from ponor_kafka.fetch_walk import TopicKey, WantedPartition

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.partition import Partition

NOT_SENT: Final = -1
READ_COMMITTED: Final = 1
READ_UNCOMMITTED: Final = 0
UNKNOWN_PARTITION: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Errors for which the list of aborted transactions is empty; for errors of an existing partition
it is null, as in Kafka."""


class PartitionFetch(FetchedPartition):
    """A partition of a request: the fields of `FetchedPartition` are its current result."""

    __slots__ = (
        "bytes_max",
        "fetch_offset",
        "is_cold",
        "is_committed",
        "is_held",
        "last_fetched_epoch",
        "leader_epoch",
        "partition",
        "readable_end",
        "sent_high_watermark",
        "sent_log_start_offset",
    )

    def __init__(self, topic: TopicKey, wanted: WantedPartition) -> None:
        super().__init__(topic, wanted[0])
        _, self.leader_epoch, self.fetch_offset, self.last_fetched_epoch, self.bytes_max = wanted
        self.partition: Partition | None = None
        self.is_cold = False
        """Whether the data is only in objects."""
        self.is_held = False
        """Whether the partition is in transit: the answer contains neither data nor offsets of it."""
        self.is_committed = False
        """Whether the reader uses `read_committed`."""
        self.readable_end = -1
        """End of the readable offsets at the reader's isolation level."""
        self.sent_high_watermark = NOT_SENT
        self.sent_log_start_offset = NOT_SENT

    def want(self, wanted: WantedPartition) -> None:
        """Replace the request fields."""
        _, self.leader_epoch, self.fetch_offset, self.last_fetched_epoch, self.bytes_max = wanted

    def begin(self, partition: Partition, isolation_level: int) -> None:
        """Reset the result of an earlier pass and set the partition's offsets."""
        self.partition = partition
        self.error_code = ErrorCode.NONE
        self.high_watermark = self.last_stable_offset = partition.high_watermark
        if partition.producers.transactions.first_unstable < self.high_watermark:
            self.last_stable_offset = partition.last_stable_offset
        self.log_start_offset = partition.log_start_offset
        self.is_committed = isolation_level == READ_COMMITTED
        if self.is_committed:
            self.readable_end, self.aborted_transactions = self.last_stable_offset, ()
        else:
            self.readable_end, self.aborted_transactions = self.high_watermark, None
        self.diverging_epoch = self.current_leader = None
        self.records = ()
        self.records_bytes = 0
        self.is_cold = self.is_held = False

    def hold(self) -> None:
        """Mark the partition as in transit."""
        self.error_code = ErrorCode.NONE
        self.diverging_epoch = self.current_leader = None
        self.drop_records()
        self.is_cold = False
        self.is_held = True

    def refuse(self, error: PartitionError) -> None:
        """Set an error as the result."""
        code = error.code
        if code is ErrorCode.REQUEST_TIMED_OUT:
            # Java's consumer handles KAFKA_STORAGE_ERROR in a Fetch, but throws on REQUEST_TIMED_OUT.
            code = ErrorCode.KAFKA_STORAGE_ERROR
        self.error_code = code
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1
        self.aborted_transactions = () if self.partition is None and code in UNKNOWN_PARTITION else None
        if self.partition is not None and not self.partition.is_serving:
            self.partition = None
        self.diverging_epoch = self.current_leader = None
        self.drop_records()
        self.is_cold = self.is_held = False

    def drop_records(self) -> None:
        """Release the batches."""
        self.records = ()
        self.records_bytes = 0

    @property
    def is_news(self) -> bool:
        """Whether an incremental answer must contain the partition (KIP-227)."""
        return not self.is_held and bool(
            self.records_bytes
            or self.error_code
            or self.high_watermark != self.sent_high_watermark
            or self.log_start_offset != self.sent_log_start_offset
            or self.diverging_epoch is not None
        )

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to report and nothing to read until the partition changes."""
        return not (self.is_news or self.is_cold or self.is_held or self.fetch_offset < self.readable_end)

    def mark_sent(self) -> None:
        """Record that the current result was sent. After an error, the next result without one is always
        news.
        """
        self.sent_high_watermark = NOT_SENT if self.error_code else self.high_watermark
        self.sent_log_start_offset = self.log_start_offset
