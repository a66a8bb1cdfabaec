"""What coordinators and partitions share about batches of transactions."""

from __future__ import annotations

from typing import NamedTuple

from ponor_kafka.errors import ErrorCode


class Verification:
    """The proof that the coordinator has a partition in a producer's transaction (KIP-890), for as long as
    its owner keeps it.

    `begins_at_zero`: the epoch belongs to this transaction alone (generation 2), so an unknown producer must
    begin with sequence 0.
    """

    __slots__ = ("__weakref__", "begins_at_zero", "is_void", "producer_epoch", "producer_id")

    def __init__(self, producer_id: int, producer_epoch: int, *, begins_at_zero: bool) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.begins_at_zero = begins_at_zero
        self.is_void = False

    def covers(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether it is a proof for this producer."""
        return (self.producer_id, self.producer_epoch) == (producer_id, producer_epoch)


class TransactionalProducer(NamedTuple):
    """The transaction to which a batch belongs; `proof` is needed unless the partition has it open."""

    producer_id: int
    producer_epoch: int
    proof: Verification | None = None


class BatchRefusedError(Exception):
    """A partition refused a batch because of its producer or its transaction; `code` is for the client."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
