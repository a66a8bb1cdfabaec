"""Rules for transactional batches and markers of one partition (KIP-98, KIP-890, KIP-1228)."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from ponor_kafka.control_records import ControlType, EndMarker
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_partition.txn_entry import TxnEntry
from s3stream.errors import AppendBackpressureError

from ponor_broker.coordination.ports import MarkerListener
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.identity import PartitionId
from ponor_broker.partitions.state.durable_state import DurableState
from ponor_broker.partitions.state.producer_entry import ProducerBatch
from ponor_broker.partitions.transactions.open_transactions import NO_OFFSET
from ponor_broker.partitions.transactions.verification import Verification, Verifications

RAISING_GENERATION: Final = 2
"""From this generation on, the coordinator raises the producer's epoch before it sends a marker."""


class TransactionMarker(NamedTuple):
    """The outcome of a producer's transaction, the same for all of its partitions. `generation` is the
    transaction version that the coordinator sends.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commits: bool
    generation: int = 0

    @property
    def end(self) -> EndMarker:
        """The content of the control batch."""
        kind = ControlType.COMMIT if self.commits else ControlType.ABORT
        return EndMarker(kind, self.coordinator_epoch)


class PartitionTransactions:
    """Transactions of one partition; `DurableState` contains the state itself."""

    __slots__ = ("_identity", "_on_marker", "_state", "_verifications")

    def __init__(self, identity: PartitionId, state: DurableState) -> None:
        self._identity = identity
        self._state = state
        self._verifications = Verifications()
        self._on_marker: MarkerListener | None = None

    @property
    def first_unstable_offset(self) -> int:
        """The smallest first offset of all transactions that are open or whose marker is not durable; an
        offset beyond the end of the log if there is no such transaction.
        """
        return self._state.producers.transactions.first_unstable

    # Batches

    def has_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the producer has an open transaction of this epoch, so that its batches need no
        verification.
        """
        entry = self._state.producers.entry(producer_id)
        return entry is not None and entry.first_offset != NO_OFFSET and entry.epoch == producer_epoch

    def begin_verification(
        self, producer_id: int, producer_epoch: int, *, generation: int
    ) -> Verification | None:
        """Return the proof that the caller keeps until the coordinator answers; None if the transaction is
        open here. If the coordinator confirms, the caller passes the proof to the producer's next append.
        """
        if self.has_open(producer_id, producer_epoch):
            return None
        return self._verifications.begin(
            producer_id, producer_epoch, begins_at_zero=generation >= RAISING_GENERATION
        )

    def is_proof(self, verification: Verification, producer_id: int, producer_epoch: int) -> bool:
        """Return whether a proof is valid for the producer's next batch."""
        return verification.covers(producer_id, producer_epoch) and self._verifications.holds(verification)

    def check(self, batch: ProducerBatch, verification: Verification | None) -> None:
        """Check whether a transactional batch belongs to an open transaction, or may begin one.

        Raises:
            PartitionError: INVALID_TXN_STATE without a valid proof; OUT_OF_ORDER_SEQUENCE_NUMBER if a
                producer of generation 2 that has no row here does not begin with sequence 0.
        """
        producer_id = batch.producer_id
        if self.has_open(producer_id, batch.producer_epoch):
            return
        if verification is None or not self.is_proof(verification, producer_id, batch.producer_epoch):
            raise PartitionError(
                ErrorCode.INVALID_TXN_STATE,
                f"{self._identity}: producer {producer_id} has no open transaction with epoch"
                f" {batch.producer_epoch} in this partition",
            )
        producers = self._state.producers
        if verification.begins_at_zero and batch.first_sequence > 0 and producers.entry(producer_id) is None:
            raise PartitionError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{self._identity}: producer {producer_id} must begin its transaction with sequence 0, not"
                f" {batch.first_sequence}",
            )

    def make_room(self, batch: ProducerBatch, confirmed_offset: int) -> None:
        """Prepare the append of a transactional batch.

        Raises:
            S3StreamError: too many transactions are open, or the storage refused the first checkpoint with
                transactions.
        """
        open_here = self._state.producers.transactions
        if batch.producer_id not in open_here and self._state.producers.is_full_of_transactions:
            raise AppendBackpressureError(
                f"{self._identity}: {len(open_here)} transactions are open, the maximum of"
                " producers_per_partition_max"
            )
        self._state.begin_transactions(confirmed_offset)

    # Markers

    @property
    def has_listener(self) -> bool:
        """Whether `ended` needs a future for the listener of markers."""
        return self._on_marker is not None

    def accept_markers(self, listener: MarkerListener | None) -> None:
        """Call `listener` for each marker from now on, when it is appended. A partition of
        `__consumer_offsets` without a listener refuses markers.
        """
        self._on_marker = listener

    def needs_stream(self, marker: TransactionMarker) -> bool:
        """Return whether the Txn stream must be created before this marker is appended."""
        if marker.commits or self._state.aborted.has_stream:
            return False
        return marker.producer_id in self._state.producers.transactions

    def check_marker(self, marker: TransactionMarker) -> None:
        """Check whether a marker may be appended now.

        Raises:
            PartitionError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, or NOT_LEADER_OR_FOLLOWER
                while the groups of the partition are not loaded, as in Kafka.
            S3StreamError: the storage has refused too many entries of the Txn stream.
        """
        if self._on_marker is None and self._identity.topic == OFFSETS_TOPIC:
            raise PartitionError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._identity}: its groups are not loaded yet"
            )
        self._state.producers.check_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.end,
            raises_epoch=marker.generation >= RAISING_GENERATION,
        )
        assert not self.needs_stream(marker), f"{self._identity}: the Txn stream must exist before the marker"
        if not marker.commits:
            self._state.aborted.check_room()

    def ended(
        self, marker: TransactionMarker, offset: int, now_ms: int, durable: asyncio.Future[None] | None
    ) -> None:
        """Note a marker that was appended just now; if it aborts a transaction, append an index entry.

        `durable`: resolves when the marker is durable; required if `has_listener`.
        """
        if self._on_marker is not None:
            assert durable is not None
            self._on_marker(marker.producer_id, marker.commits, durable)
        producers, producer_id = self._state.producers, marker.producer_id
        self._verifications.void(producer_id)
        first_offset = producers.append_marker(producer_id, marker.producer_epoch, marker.end, offset, now_ms)
        if first_offset != NO_OFFSET and not marker.commits:
            stable = producers.transactions.stable_after(offset)
            self._state.aborted.add(TxnEntry(producer_id, first_offset, offset, stable))
