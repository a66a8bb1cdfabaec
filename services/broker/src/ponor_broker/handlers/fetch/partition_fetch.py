"""One partition as one reader fetches it: what is wanted, what was found, and what the reader was told last.

What lives here: the state that a pass (`fetch_reading`) fills in and that a fetch session (`fetch_session`) keeps from one request to the next.
It is the answer for its partition as well, so that nothing is copied between looking and answering. No decisions about the whole request.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.fetch_response import FetchedPartition
from ponor_kafka.fetch_walk import TopicKey, WantedPartition

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.partition import Partition

NOT_TOLD: Final = -1
READ_COMMITTED: Final = 1
READ_UNCOMMITTED: Final = 0
UNKNOWN_PARTITION: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Nobody could be asked: then the list of aborted transactions is empty. Beside an error of a read it is null, as in Kafka."""


class PartitionFetch(FetchedPartition):
    """A partition of a request: the fields of `FetchedPartition` are its answer so far."""

    __slots__ = (
        "bytes_max",
        "fetch_offset",
        "is_cold",
        "is_held",
        "last_fetched_epoch",
        "leader_epoch",
        "partition",
        "told_high_watermark",
        "told_log_start_offset",
    )

    def __init__(self, topic: TopicKey, wanted: WantedPartition) -> None:
        super().__init__(topic, wanted[0])
        _, self.leader_epoch, self.fetch_offset, self.last_fetched_epoch, self.bytes_max = wanted
        self.partition: Partition | None = None
        self.is_cold = False
        """Its data is in objects only."""
        self.is_held = False
        """It is on the move: nothing is said of it, neither data nor where it stands."""
        self.told_high_watermark = NOT_TOLD
        self.told_log_start_offset = NOT_TOLD

    def want(self, wanted: WantedPartition) -> None:
        """The reader asks for something else from now on."""
        _, self.leader_epoch, self.fetch_offset, self.last_fetched_epoch, self.bytes_max = wanted

    def begin(self, partition: Partition, isolation_level: int) -> None:
        """Forget what an earlier pass found and note where the partition stands.

        Without transactions the last stable offset is the high watermark, and none is aborted.
        """
        self.partition = partition
        self.error_code = ErrorCode.NONE
        self.high_watermark = self.last_stable_offset = partition.high_watermark
        self.log_start_offset = partition.log_start_offset
        self.aborted_transactions = () if isolation_level == READ_COMMITTED else None
        self.diverging_epoch = self.current_leader = None
        self.records = ()
        self.records_bytes = 0
        self.is_cold = self.is_held = False

    def hold(self) -> None:
        """It is not known who serves it."""
        self.error_code = ErrorCode.NONE
        self.diverging_epoch = self.current_leader = None
        self.drop_records()
        self.is_cold = False
        self.is_held = True

    def refuse(self, error: PartitionError) -> None:
        """The answer is an error."""
        code = error.code
        if code is ErrorCode.REQUEST_TIMED_OUT:
            # Java's consumer knows this one in a Fetch, and dies of the other.
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
        """Let go of the batches that were found."""
        self.records = ()
        self.records_bytes = 0

    @property
    def is_news(self) -> bool:
        """Whether an incremental answer has to mention the partition (KIP-227)."""
        return not self.is_held and bool(
            self.records_bytes
            or self.error_code
            or self.high_watermark != self.told_high_watermark
            or self.log_start_offset != self.told_log_start_offset
            or self.diverging_epoch is not None
        )

    @property
    def is_settled(self) -> bool:
        """Nothing to say and nothing to read: only the partition itself can change that."""
        return not (self.is_news or self.is_cold or self.is_held or self.fetch_offset < self.high_watermark)

    def told(self) -> None:
        """The present answer was sent. After an error the next answer without one is news whatever it says."""
        self.told_high_watermark = NOT_TOLD if self.error_code else self.high_watermark
        self.told_log_start_offset = self.log_start_offset
