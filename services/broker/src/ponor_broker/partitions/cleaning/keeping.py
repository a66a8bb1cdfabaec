"""What a cleaning keeps: the last record of each key, tombstones until their horizon, and batches
that producers and transactions need.

No I/O (Apache Kafka's `Cleaner.shouldRetainRecord` and `checkBatchRetention`; KIP-534 for the
horizon). Everything above the last indexed offset is kept unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ponor_kafka.record_batch import BatchView
from ponor_kafka.record_rules import INT64_MAX

from ponor_broker.partitions.cleaning.offset_map import OffsetMap
from ponor_broker.partitions.cleaning.record_scan import ScannedRecord
from ponor_broker.partitions.cleaning.transactions import AbortedTransaction, TransactionTrail


@dataclass(slots=True)
class KeyIndex:
    """Index of the dirty part, `first_offset` to `last_offset` inclusive: the newest offset of every key."""

    offsets: OffsetMap
    first_offset: int
    last_offset: int
    aborted: list[AbortedTransaction] = field(default_factory=list)


class Verdict(NamedTuple):
    """Decision on a batch. `keeps_header`: the batch stays even without records. `is_idle_marker`: the batch
    is a marker that is no longer needed and gets a delete horizon, as tombstones do.
    """

    drops_records: bool
    keeps_header: bool
    is_idle_marker: bool


class Keeper:
    """Decisions of one pass. `is_last_of_producer` returns whether a batch holds the newest
    sequence of a known producer.
    """

    def __init__(
        self,
        index: KeyIndex,
        is_last_of_producer: Callable[[BatchView], bool],
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._index = index
        self._is_last_of_producer = is_last_of_producer
        self._trail = TransactionTrail(index.aborted)
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms

    def is_untouched(self, batch: BatchView) -> bool:
        """Return whether the whole batch is above the index."""
        return batch.base_offset > self._index.last_offset

    def judge(self, batch: BatchView) -> Verdict:
        """Decide on a batch; call it for every batch, in log order."""
        may_discard = self._trail.may_discard(batch)
        is_idle_marker = may_discard and batch.is_control
        # Fetch responses list the aborted transactions of the dirty part. If the marker of a listed
        # transaction were missing, the reader would also skip the producer's next transaction.
        drops = may_discard and (not batch.is_control or (self._is_over(batch) and self._is_clean(batch)))
        keeps_header = batch.has_producer_id and self._is_last_of_producer(batch)
        return Verdict(drops, keeps_header, is_idle_marker)

    def keeps(self, batch: BatchView, record: ScannedRecord) -> bool:
        """Return whether to keep a record of a batch for which `judge` returned `drops_records` False."""
        offset = batch.base_offset + record.offset_delta
        if batch.is_control or offset > self._index.last_offset:
            return True
        if record.key is None or self._index.offsets.newest(record.key) > offset:
            return False
        return record.has_value or not self._is_over(batch)

    def new_horizon_ms(self, batch: BatchView, *, has_tombstones: bool, is_idle_marker: bool) -> int | None:
        """Return the time at which kept tombstones or an idle marker may be removed; None to set no horizon.

        The retention starts when the records that the tombstones delete have been removed. It does not start
        for a batch that extends above the index (Kafka starts it too early there).
        """
        if not (has_tombstones or is_idle_marker) or batch.delete_horizon_ms is not None:
            return None
        if batch.last_offset > self._index.last_offset:
            return None
        return min(self._now_ms + self._delete_retention_ms, INT64_MAX)

    def _is_clean(self, batch: BatchView) -> bool:
        return batch.last_offset < self._index.first_offset

    def _is_over(self, batch: BatchView) -> bool:
        horizon_ms = batch.delete_horizon_ms
        return horizon_ms is not None and horizon_ms <= self._now_ms
