"""Transactions for the cleaner: which records are aborted, and which markers are obsolete.

State machines over batches in log order, without I/O; the rules are those of Apache Kafka's
`CleanedTransactionMetadata`. Kafka looks aborted transactions up in an index; here `OutcomeScan`
reads them from their markers, which the pass reads anyway, before the records are processed.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from ponor_kafka.control_records import ControlType, control_type
from ponor_kafka.record_batch import BatchView


class AbortedTransaction(NamedTuple):
    """An aborted transaction: the offsets of its first batch and of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class OutcomeScan:
    """Reads batch headers and markers of a part of the log, to find how its transactions ended."""

    def __init__(self) -> None:
        self.aborted: list[AbortedTransaction] = []
        """In the order of their markers."""
        self._open: dict[int, int] = {}

    @property
    def open_from(self) -> int | None:
        """First offset of the oldest open transaction; None if no transaction is open."""
        return min(self._open.values(), default=None)

    def see(self, batch: BatchView) -> None:
        """Process the next batch of the log."""
        if not batch.is_control:
            if batch.is_transactional:
                self._open.setdefault(batch.producer_id, batch.base_offset)
            return
        kind = control_type(batch)
        if kind not in {ControlType.ABORT, ControlType.COMMIT}:
            return
        first_offset = self._open.pop(batch.producer_id, None)
        if kind == ControlType.ABORT and first_offset is not None:
            self.aborted.append(AbortedTransaction(batch.producer_id, first_offset, batch.last_offset))


class TransactionTrail:
    """Walks a log from its start, batch by batch, and decides which batches the cleaner may discard."""

    def __init__(self, aborted: list[AbortedTransaction]) -> None:
        self._ahead = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborted_now: dict[int, bool] = {}  # by producer id: whether a batch of it was seen
        self._committed_now: dict[int, None] = {}

    def may_discard(self, batch: BatchView) -> bool:
        """Return True for a batch of an aborted transaction, or for the marker of a transaction
        without remaining batches. The delete horizon decides when such a marker is removed.
        """
        while self._ahead and self._ahead[0].first_offset <= batch.last_offset:
            self._aborted_now.setdefault(self._ahead.popleft().producer_id, False)
        if batch.is_control:
            return self._may_discard_marker(batch)
        if not batch.is_transactional:
            return False
        if batch.producer_id in self._aborted_now:
            self._aborted_now[batch.producer_id] = True
            return True
        self._committed_now[batch.producer_id] = None
        return False

    def _may_discard_marker(self, batch: BatchView) -> bool:
        match control_type(batch):
            case None:
                return True
            case ControlType.ABORT:
                return not self._aborted_now.pop(batch.producer_id, False)
            case ControlType.COMMIT:
                return self._committed_now.pop(batch.producer_id, _NOT_SEEN) is _NOT_SEEN
            case _:
                return False


_NOT_SEEN: Final = object()
