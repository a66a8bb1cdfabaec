"""Order of an idempotent producer's batches: later batches wait until a temporarily refused one is retried.

A producer keeps up to five requests in flight. Assume that the first batch of a new producer is refused
because of load, and the second is accepted a moment later: it counts as the producer's first, which may have
any sequence. The retry of the first batch would then be out of order forever (Java bumps its epoch and
reorders, librdkafka fails). For a known producer, the sequence of the second batch shows
the gap; here, this batch gets a retriable error instead of OUT_OF_ORDER_SEQUENCE_NUMBER.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.identity import PartitionId, PartitionKey
from ponor_broker.partitions.state.producer_entry import PAST_MAX, SEQUENCE_MODULUS, ProducerBatch
from ponor_broker.partitions.state.producer_state import ProducerStates

REFUSED_MAX: Final = 10_000
"""Producers that a broker remembers for all of its partitions. Above this number, it removes the oldest; see
`RefusedSequences.holds_back`."""
REMEMBERED_NS: Final = 300 * 1_000_000_000
"""The producer has given up a refused batch that it did not retry for this long. Clients retry within
seconds, and each retry restarts the time."""

_Producer: TypeAlias = tuple[PartitionKey, int]


class _Refused(NamedTuple):
    """One producer's epoch, the sequence that must come next, the largest refused sequence, and the time of
    the last refusal.
    """

    epoch: int
    next_sequence: int
    last_refused: int
    refused_ns: int


class RefusedSequences:
    """The earliest refused sequence per producer and partition, for all partitions of a broker."""

    def __init__(self, clock: Clock, *, refused_max: int = REFUSED_MAX) -> None:
        self._clock = clock
        self._refused_max = refused_max
        self._forgot_until_ns = 0
        self.waiting_for: dict[_Producer, _Refused] = {}
        """Producers with refused batches that were not accepted since, in the order of the last refusals;
        nearly always empty."""

    def note(self, key: PartitionKey, batch: ProducerBatch) -> None:
        """Note a refused batch that may be accepted when it is retried."""
        now_ns, producer = self._clock.monotonic_ns(), (key, batch.producer_id)
        known = self.waiting_for.pop(producer, None)
        sequence = batch.first_sequence
        refused = _Refused(batch.producer_epoch, sequence, sequence, now_ns)
        if known is not None and known.epoch > refused.epoch:
            refused = known
        elif known is not None and known.epoch == refused.epoch:
            next_sequence, last_refused = known.next_sequence, known.last_refused
            refused = _Refused(
                known.epoch,
                next_sequence if _is_behind(sequence, next_sequence) else sequence,
                sequence if _is_behind(sequence, last_refused) else last_refused,
                now_ns,
            )
        self.waiting_for[producer] = refused
        if len(self.waiting_for) > self._refused_max:
            del self.waiting_for[next(iter(self.waiting_for))]
            self._forgot_until_ns = now_ns + REMEMBERED_NS

    def holds_back(self, key: PartitionKey, batch: ProducerBatch, *, is_known: bool) -> bool:
        """Return whether a batch must wait for a refused one of the same producer; if so, note it as refused
        too.

        For a while after an entry had to be removed, every batch that could be the second one of an unknown
        producer must wait.

        Args:
            key: the partition.
            batch: the batch, which is not a repeat.
            is_known: whether the partition has accepted a batch of this producer.
        """
        refused = self.waiting_for.get((key, batch.producer_id))
        now_ns = self._clock.monotonic_ns()
        if refused is None:
            return not is_known and batch.first_sequence != 0 and now_ns < self._forgot_until_ns
        if now_ns - refused.refused_ns >= REMEMBERED_NS:
            del self.waiting_for[key, batch.producer_id]
            return False
        if refused.epoch != batch.producer_epoch or not _is_behind(
            batch.first_sequence, refused.next_sequence
        ):
            return False
        self.note(key, batch)
        return True

    def taken(self, key: PartitionKey, batch: ProducerBatch) -> None:
        """Note an accepted batch. If this batch had to come next, its successor must come next, until all
        refused batches are accepted.
        """
        self.taken_until((key, batch.producer_id), batch.producer_epoch, batch.last_sequence)

    def taken_until(self, producer: _Producer, epoch: int, last: int) -> None:
        """Record that the producer's batches up to the sequence `last` of this epoch are accepted."""
        refused = self.waiting_for.get(producer)
        if refused is None:
            return
        if refused.epoch < epoch:
            del self.waiting_for[producer]
        elif refused.epoch == epoch and not _is_behind(refused.next_sequence, last):
            if _is_behind(refused.last_refused, last):
                self.waiting_for[producer] = refused._replace(next_sequence=(last + 1) % SEQUENCE_MODULUS)
            else:
                del self.waiting_for[producer]


def _is_behind(sequence: int, other: int) -> bool:
    """Return whether `sequence` comes after `other`."""
    return 0 < (sequence - other) % SEQUENCE_MODULUS < PAST_MAX


class SequenceOrder:
    """The order in one partition, from the producers' state and the refused batches. All partitions of the
    broker share `refused`.
    """

    __slots__ = ("_identity", "_producers", "_refused")

    def __init__(self, identity: PartitionId, producers: ProducerStates, refused: RefusedSequences) -> None:
        self._identity = identity
        self._producers = producers
        self._refused = refused

    def check(self, batch: ProducerBatch, *, has_in_flight: bool, is_transactional: bool = False) -> None:
        """Check whether a batch that is not a retained duplicate may be appended now. A batch without
        sequence, which a coordinator wrote, waits for no other.

        Raises:
            PartitionError: the producer's epoch or sequence is refused, or an earlier batch must come first.
        """
        key, entry = self._identity.key, self._producers.entry(batch.producer_id)
        if entry is not None and entry.batches and self._refused.waiting_for:
            # If another broker led the partition in the meantime, it may have accepted refused batches.
            self._refused.taken_until((key, batch.producer_id), entry.epoch, entry.last_sequence)
        if batch.first_sequence >= 0 and self._refused.holds_back(key, batch, is_known=entry is not None):
            raise PartitionError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self._identity}: an earlier batch of producer {batch.producer_id} was refused and must be"
                " retried first",
            )
        try:
            self._producers.check(batch, is_transactional=is_transactional)
        except PartitionError as error:
            if error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and has_in_flight:
                # Clients treat this code as an acknowledgement, and the batch may not be durable yet.
                raise PartitionError(
                    ErrorCode.REQUEST_TIMED_OUT, f"{self._identity}: {error}, and may not be durable yet"
                ) from error
            raise

    def refuse(self, batch: ProducerBatch | None) -> None:
        """Record that the storage refused the batch; its producer will retry it."""
        if batch is not None and batch.first_sequence >= 0:
            self._refused.note(self._identity.key, batch)

    def append(self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int) -> None:
        """Note an accepted batch."""
        self._producers.append(batch, base_offset, end_offset, now_ms)
        if self._refused.waiting_for:
            self._refused.taken(self._identity.key, batch)

    def append_transactional(
        self, batch: ProducerBatch, base_offset: int, end_offset: int, now_ms: int
    ) -> None:
        """Note an accepted transactional batch."""
        self._producers.append_transactional(batch, base_offset, end_offset, now_ms)
        if self._refused.waiting_for and batch.first_sequence >= 0:
            self._refused.taken(self._identity.key, batch)
