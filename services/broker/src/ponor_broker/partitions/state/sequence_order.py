"""Order of an idempotent producer's batches in one partition."""

from __future__ import annotations

from ponor_kafka.errors import ErrorCode

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.identity import PartitionId
from ponor_broker.partitions.state.producer_entry import ProducerBatch
from ponor_broker.partitions.state.producer_state import ProducerStates
from ponor_broker.partitions.state.refused_sequences import RefusedSequences


class SequenceOrder:
    """Combines the producers' state with temporarily refused batches; all partitions of the broker
    share `refused`.
    """

    __slots__ = ("_identity", "_producers", "_refused")

    def __init__(self, identity: PartitionId, producers: ProducerStates, refused: RefusedSequences) -> None:
        self._identity = identity
        self._producers = producers
        self._refused = refused

    def check(self, batch: ProducerBatch, *, has_in_flight: bool) -> None:
        """Check whether a batch that is no retained duplicate may be appended now.

        Raises:
            PartitionError: the producer's epoch or sequence is refused, or an earlier batch must
                come first.
        """
        is_known = self._producers.entry(batch.producer_id) is not None
        if self._refused.holds_back(self._identity.key, batch, is_known=is_known):
            raise PartitionError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self._identity}: an earlier batch of producer {batch.producer_id} was refused and must be retried first",
            )
        try:
            self._producers.check(batch)
        except PartitionError as error:
            if error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and has_in_flight:
                # Clients treat this code as an acknowledgement, and the batch may not be durable
                # yet.
                raise PartitionError(
                    ErrorCode.REQUEST_TIMED_OUT, f"{self._identity}: {error}; not durable yet"
                ) from error
            raise

    def refuse(self, batch: ProducerBatch | None) -> None:
        """Note that the storage refused the batch; its producer will retry it."""
        if batch is not None:
            self._refused.note(self._identity.key, batch)

    def append(self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int) -> None:
        """Note an accepted batch."""
        self._producers.append(batch, base_offset, end_offset, now_ms)
        if self._refused.waiting_for:
            self._refused.taken(self._identity.key, batch)
