"""Decides which transactional batches of Produce wait for the transaction coordinator (KIP-890)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_kafka.produce_walk import ProduceWalk
from ponor_kafka.record_batch import HEADER_BYTES, NO_PRODUCER_ID, TRANSACTIONAL_BIT
from s3stream.records import unpinned

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.partition_transactions import RAISING_GENERATION
from ponor_broker.partitions.transactions.verification import Verification
from ponor_broker.transactions.verification import Claim, TransactionVerifier, WaitingBatch
from ponor_broker.transactions.verification_errors import (
    TransactionalWrite,
    error_of_produce,
    write_of_produce,
)

Verifier: TypeAlias = TransactionVerifier[Verification]
Settled: TypeAlias = Callable[[memoryview, "PartitionError | None", "Verification | None"], None]
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 22
"""Position of the attributes' low byte in a batch."""
_MAGIC: Final = 2
_PRODUCER_AT: Final = 43
_PRODUCER: Final = struct.Struct(">qh")
_RETRIED: Final = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
NO_ID: Final = PartitionError(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional batches need a transactional id"
)
SEVERAL_PRODUCERS: Final = PartitionError(
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    "the transactional batches of a request must have one producer id and epoch",
)


class UnverifiedError(PartitionError):
    """The transaction of a batch could not be verified now. The producer will send the same batch again."""


def is_transactional(records: memoryview | None) -> bool:
    """Return whether the first batch, which may be malformed, is transactional."""
    return (
        records is not None
        and len(records) > _ATTRIBUTES_AT
        and records[_MAGIC_AT] == _MAGIC
        and bool(records[_ATTRIBUTES_AT] & TRANSACTIONAL_BIT)
    )


def refusal_of_transaction(walk: ProduceWalk) -> PartitionError | None:
    """Return why all batches of a request are refused, as in Kafka; None if they are not."""
    transactional = [records for *_, records in walk.partitions if is_transactional(records)]
    if not transactional:
        return None
    if walk.transactional_id is None:
        return NO_ID
    producers = set(map(_producer, transactional)) - {None}
    return SEVERAL_PRODUCERS if len(producers) > 1 else None


def _producer(records: memoryview | None) -> tuple[int, int] | None:
    """Return the producer id and epoch of a transactional batch; None if the batch is not transactional or
    has no producer id. The validator checks the batch later.
    """
    if records is None or len(records) < HEADER_BYTES or not is_transactional(records):
        return None
    producer_id, producer_epoch = _PRODUCER.unpack_from(records, _PRODUCER_AT)
    return None if producer_id == NO_PRODUCER_ID else (producer_id, producer_epoch)


def apart(records: memoryview) -> memoryview:
    """Return a batch that must wait: a copy if it is a small part of its request. The wait may outlast the
    request, and only the batch is counted.
    """
    return records if unpinned(records) is records else memoryview(bytearray(records))


class VerifiedBatches:
    """Decides for each batch whether it waits for the coordinator."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def is_waiting(self, partition: Partition, records: memoryview | None) -> bool:
        """Return whether earlier batches of a transactional batch's producer wait for the coordinator."""
        producer = _producer(records)
        return producer is not None and self._verifier.is_waiting(_where(partition), producer[0])

    def wait_for(
        self,
        partition: Partition,
        transactional_id: str,
        records: memoryview | None,
        version: int,
        proof: Verification | None,
        settled: Settled,
    ) -> bool:
        """Let a batch wait for the coordinator; return False if it may be appended now, with `proof`.

        `settled` is called once, perhaps within this call, with the batch, which may be a copy, and with an
        error or the proof for the append.

        Raises:
            PartitionInTransitError: the partition moves, and no other batch of the producer waits here.
            S3StreamError: the partition is closed, or has failed.
        """
        producer = _producer(records)
        if producer is None or records is None:
            return False
        producer_id, producer_epoch = producer
        where = _where(partition)
        transactions = partition.transactions
        if not self._verifier.is_waiting(where, producer_id):
            if transactions.has_open(producer_id, producer_epoch) or (
                proof is not None and transactions.is_proof(proof, producer_id, producer_epoch)
            ):
                return False
            # Refuse while the partition moves: earlier batches may be parked. If this batch waited here and
            # the move were cancelled, they would wait behind it.
            partition.service.check_appends()
        batch = apart(records)
        write = write_of_produce(version)
        generation = RAISING_GENERATION if write is TransactionalWrite.ADDING else 1
        self._verifier.submit(
            where,
            Claim(transactional_id, producer_id, producer_epoch),
            WaitingBatch(
                write,
                len(batch),
                lambda: transactions.begin_verification(producer_id, producer_epoch, generation=generation),
                lambda: partition.is_writable,
                lambda error, found: settled(batch, _error(write, error, partition), found),
            ),
        )
        return True


def _where(partition: Partition) -> tuple[str, int]:
    return partition.identity.topic, partition.identity.index


def _error(write: TransactionalWrite, error: ErrorCode, partition: Partition) -> PartitionError | None:
    if error is ErrorCode.NONE:
        return None
    code = error_of_produce(write, error)
    kind = UnverifiedError if code in _RETRIED else PartitionError
    return kind(code, f"{partition.identity}: unverified transaction: {error.name}")
