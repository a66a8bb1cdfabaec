"""Why a partition refused: exceptions that carry the Kafka error a client gets.

What lives here: the one family of errors between partitions and handlers. Overload and trouble with the storage are always among
Kafka's retriable codes; UNKNOWN_SERVER_ERROR is never used, since producers take it as final.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ponor_kafka.errors import ErrorCode
from s3stream.errors import (
    AppendBackpressureError,
    OffsetOutOfRangeError,
    ReadTimeoutError,
    StreamClosedError,
    StreamFencedError,
    StreamNotFoundError,
)

from ponor_broker.partitions.identity import PartitionKey


class RecordError(NamedTuple):
    """What is wrong with one record of a refused batch; `record` counts from 0."""

    record: int
    message: str


class PartitionError(Exception):
    """A request that a partition refused, with the code for the client and one line for people; `record_errors` where single records are why."""

    def __init__(self, code: ErrorCode, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.record_errors = record_errors


class NotOneBatchError(PartitionError):
    """The records of a Produce request are not one batch of a format that is known: refused before the partition looks at them."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class BrokerFencedError(PartitionError):
    """This broker may not answer (`Serving`): it does not know any more who leads the partition, nor whether it exists."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker may not answer: {reason}")


class PartitionInTransitError(PartitionError):
    """Which broker serves the partition is about to be known: who can wait for a moment should, others are told NOT_LEADER_OR_FOLLOWER.

    `key` is the topic id and the number, for `TransitParking`.
    """

    def __init__(self, key: PartitionKey, message: str) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        self.key = key


def storage_error(error: BaseException) -> PartitionError:
    """What a client is told about an exception of the storage layer."""
    if isinstance(error, PartitionError):
        return error
    return PartitionError(_code_of(error), f"{type(error).__name__}: {error}")


def _code_of(error: BaseException) -> ErrorCode:
    match error:
        case AppendBackpressureError() | ReadTimeoutError() | TimeoutError():
            # Every client repeats REQUEST_TIMED_OUT without a metadata refresh: the leader is right, it is only slow or full.
            return ErrorCode.REQUEST_TIMED_OUT
        case StreamFencedError() | StreamClosedError() | StreamNotFoundError():
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        case OffsetOutOfRangeError():
            return ErrorCode.OFFSET_OUT_OF_RANGE
        case _:
            return ErrorCode.KAFKA_STORAGE_ERROR
