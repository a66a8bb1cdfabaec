"""Batches of idempotent producers that were refused for a moment: nothing that their producers sent behind them is taken before they come again.

A producer keeps up to five requests in flight. When the first is refused for load and there is room for the second a moment later, the second would be the
first that the partition takes of a new producer, which may begin with any sequence; the retry of the first would then be out of order for ever (Java bumps
its epoch and changes the order, librdkafka fails). A producer that the partition knows is protected by its sequence, and gets a retriable error
here instead of OUT_OF_ORDER_SEQUENCE_NUMBER.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from ponor_runtime.clock import Clock

from ponor_broker.partitions.identity import PartitionKey
from ponor_broker.partitions.state.producer_entry import PAST_MAX, SEQUENCE_MODULUS, ProducerBatch

REFUSED_MAX: Final = 10_000
"""Producers of all partitions of a broker that are remembered. Beyond, the oldest are forgotten; see `RefusedSequences.holds_back`."""
REMEMBERED_NS: Final = 300 * 1_000_000_000
"""A refused batch that was not repeated for so long was given up. Clients repeat within seconds, and each repetition counts."""

_Producer: TypeAlias = tuple[PartitionKey, int]


class _Refused(NamedTuple):
    """Of one producer: the sequence that has to come next, the largest that was refused, and when one was refused last."""

    epoch: int
    next_sequence: int
    last_refused: int
    refused_ns: int


class RefusedSequences:
    """The earliest refused sequence of each producer and partition. One for all partitions of a broker."""

    def __init__(self, clock: Clock, *, refused_max: int = REFUSED_MAX) -> None:
        self._clock = clock
        self._refused_max = refused_max
        self._forgot_until_ns = 0
        self.waiting_for: dict[_Producer, _Refused] = {}
        """Producers with batches that were refused and not taken since, in the order of the last refusal; nearly always empty."""

    def note(self, key: PartitionKey, batch: ProducerBatch) -> None:
        """The batch was refused, and may be taken when it comes again."""
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
        """Whether a batch has to wait for one of the same producer that was refused; it is noted as refused then.

        For a while after a producer had to be forgotten, every batch has to that could be the second of a producer the partition does not know.

        Args:
            key: the partition.
            batch: the batch, which repeats none that was taken.
            is_known: whether the partition has taken a batch of this producer.
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
        """The batch was taken: if it is the one that had to come, the next one may, until all that were refused are taken."""
        producer, last = (key, batch.producer_id), batch.last_sequence
        refused = self.waiting_for.get(producer)
        if refused is None:
            return
        if refused.epoch < batch.producer_epoch:
            del self.waiting_for[producer]
        elif refused.epoch == batch.producer_epoch and not _is_behind(refused.next_sequence, last):
            if _is_behind(refused.last_refused, last):
                self.waiting_for[producer] = refused._replace(next_sequence=(last + 1) % SEQUENCE_MODULUS)
            else:
                del self.waiting_for[producer]


def _is_behind(sequence: int, other: int) -> bool:
    """Whether `sequence` comes after `other`, of one producer."""
    return 0 < (sequence - other) % SEQUENCE_MODULUS < PAST_MAX
