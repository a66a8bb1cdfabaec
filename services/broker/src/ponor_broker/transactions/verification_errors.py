"""Errors for clients when a partition cannot verify a transaction (KIP-890), as in Kafka 4.3.1.

Sources: AddPartitionsToTxnManager, ReplicaManager.handleProduceAppend and
CoordinatorOperationExceptionHelper of Apache Kafka.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ponor_kafka.errors import ErrorCode


class TransactionalWrite(Enum):
    """Kind of a transactional write, which the version of the client's request determines."""

    VERIFIED_OLD = "verified, old errors"
    """The client adds partitions itself, and does not support TRANSACTION_ABORTABLE."""
    VERIFIED = "verified"
    """The client adds partitions itself."""
    ADDING = "adding"
    """The client adds no partitions; the broker adds them when they are written to (generation 2)."""


def write_of_produce(version: int) -> TransactionalWrite:
    """Return the kind of a Produce version."""
    return _of_version(version, abortable_min=11, adding_min=12)


def write_of_offset_commit(version: int) -> TransactionalWrite:
    """Return the kind of a TxnOffsetCommit version."""
    return _of_version(version, abortable_min=4, adding_min=5)


def _of_version(version: int, *, abortable_min: int, adding_min: int) -> TransactionalWrite:
    if version >= adding_min:
        return TransactionalWrite.ADDING
    return TransactionalWrite.VERIFIED if version >= abortable_min else TransactionalWrite.VERIFIED_OLD


def error_for(write: TransactionalWrite, error: ErrorCode) -> ErrorCode:
    """Return the error that a write gets for an error of the coordinator."""
    match error:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if write is TransactionalWrite.VERIFIED_OLD:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return ErrorCode.INVALID_TXN_STATE
    return error


_NOT_ASKED: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def error_of_produce(write: TransactionalWrite, error: ErrorCode) -> ErrorCode:
    """Return the error of the Produce response for an error of the verifier.

    Clients, also old ones, retry after NOT_ENOUGH_REPLICAS without looking up the leader again.
    """
    is_concurrent = error is ErrorCode.CONCURRENT_TRANSACTIONS and write is not TransactionalWrite.ADDING
    return ErrorCode.NOT_ENOUGH_REPLICAS if error in _NOT_ASKED or is_concurrent else error


def error_of_offset_commit(error: ErrorCode) -> ErrorCode:
    """Return the error of the TxnOffsetCommit response for an error of the verifier. After
    COORDINATOR_LOAD_IN_PROGRESS, clients retry without a look-up of the group's coordinator.
    """
    if error is ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return error
