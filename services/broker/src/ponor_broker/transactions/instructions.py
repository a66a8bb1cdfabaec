"""Instructions of the state machine of a transactional id: answers, timers, records to write, markers to
send. The shard executes them in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_runtime.identity import ProducerId

from ponor_broker.transactions.events import RequestId
from ponor_broker.transactions.records import NO_EPOCH, NO_PRODUCER, TopicPartition, TransactionRecord


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    """The answer to InitProducerId, AddPartitionsToTxn and EndTxn. After a successful InitProducerId or
    EndTxn of generation 2, it contains the id and the epoch that the producer must use from then on.
    """

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a waiting request. Every request is answered exactly once."""

    request: RequestId
    body: TransactionAnswer


class TimerKind(Enum):
    """The purpose of a timer. Another `SetTimer` of the same kind replaces it; no instruction cancels it."""

    TIMEOUT = "timeout"
    """The transaction has been open for its timeout: call `Transaction.timed_out`."""
    RETRY = "retry"
    """The completion could not be written: call `Transaction.markers_done` again."""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call the state machine after this delay."""

    kind: TimerKind
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Write:
    """Write the record, or a tombstone for None. When the write is durable or has failed, call
    `Transaction.written`. At most one write of an id is in flight.
    """

    record: TransactionRecord | None


@dataclass(frozen=True, slots=True)
class Markers:
    """The outcome of a transaction, which each of its partitions gets as a marker.

    Attributes:
        producer_epoch: for generation 2, one above the epoch of the transaction's batches.
    """

    producer_id: ProducerId
    producer_epoch: int
    is_commit: bool
    is_generation_2: bool
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Send the markers, then call `Transaction.markers_done` when each is durable or its topic is deleted."""

    markers: Markers


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove the id from memory: its tombstone is durable, or its first record could not be written."""


Instruction: TypeAlias = Answer | SetTimer | Write | SendMarkers | Forget
