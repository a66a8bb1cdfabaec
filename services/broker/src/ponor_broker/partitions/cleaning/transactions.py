"""Transactions as the cleaner sees them: whose records are void, and which markers nobody needs any more.

What lives here: pure state machines over batches in the order of the log; the rules are those of Apache Kafka's `CleanedTransactionMetadata`. Kafka looks aborted
transactions up in an index; here they are learned from their markers, by `OutcomeScan`, before the records are looked at.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from ponor_kafka.record_batch import BatchView

CONTROL_RECORD_BYTES_MAX: Final = 1 << 16
_CONTROL_KEY: Final = Struct(">hh")


class ControlType(IntEnum):
    """The type in a control record's key. Other numbers exist, and are none of a transaction's."""

    ABORT = 0
    COMMIT = 1


class AbortedTransaction(NamedTuple):
    """Offset of its first batch, and of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


def control_type(batch: BatchView) -> int | None:
    """What a control batch says; None where its record was removed already.

    Raises:
        KafkaWireError: it holds no control record.
    """
    if batch.record_count == 0:
        return None
    key = next(iter(batch.records(CONTROL_RECORD_BYTES_MAX))).key or b""
    return int(_CONTROL_KEY.unpack_from(key)[1]) if len(key) >= _CONTROL_KEY.size else -1


class OutcomeScan:
    """Reads batch headers and markers of a part of the log, and knows then how its transactions ended."""

    def __init__(self) -> None:
        self.aborted: list[AbortedTransaction] = []
        """In the order of their markers."""
        self._open: dict[int, int] = {}

    @property
    def open_from(self) -> int | None:
        """Where the first transaction begins that has not ended; None without one."""
        return min(self._open.values(), default=None)

    def see(self, batch: BatchView) -> None:
        """The next batch of the log."""
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
    """Goes over a log from its start, batch by batch, and says of each whether the cleaner may discard it."""

    def __init__(self, aborted: list[AbortedTransaction]) -> None:
        self._ahead = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborted_now: dict[int, bool] = {}  # whether batches of the transaction were seen
        self._committed_now: dict[int, None] = {}

    def may_discard(self, batch: BatchView) -> bool:
        """A batch of an aborted transaction; or a marker of a transaction that has no batch left (the delete horizon then decides)."""
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
