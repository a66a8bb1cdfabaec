"""Types for appends of transactional batches, shared by coordinators and partitions."""

from __future__ import annotations

from typing import NamedTuple

from ponor_kafka.errors import ErrorCode


class Verification:
    """The proof that the coordinator has a partition in a producer's transaction (KIP-890).

    The partition holds only a weak reference: a proof ends when the caller that requested it drops it.
    `begins_at_zero`: each transaction of the producer has its own epoch (transaction version 2), so a
    producer without a row in the partition must begin with sequence 0.
    """

    __slots__ = ("__weakref__", "begins_at_zero", "is_void", "producer_epoch", "producer_id")

    def __init__(self, producer_id: int, producer_epoch: int, *, begins_at_zero: bool) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.begins_at_zero = begins_at_zero
        self.is_void = False

    def covers(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the proof is for this producer and epoch."""
        return (self.producer_id, self.producer_epoch) == (producer_id, producer_epoch)


class TransactionalProducer(NamedTuple):
    """The producer of a transactional batch. `proof` is needed if its partition has no open transaction of
    the producer.
    """

    producer_id: int
    producer_epoch: int
    proof: Verification | None = None


class BatchRefusedError(Exception):
    """A partition refused a batch because of its producer or its transaction; `code` is for the client."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
