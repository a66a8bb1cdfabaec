"""Exceptions of partitions, with the Kafka error code for the client.

Overload and storage errors always get a retriable code. UNKNOWN_SERVER_ERROR is never used, since
producers treat it as final.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ponor_kafka.errors import ErrorCode
from s3stream.errors import (
    AppendBackpressureError,
    OffsetOutOfRangeError,
    ReadTimeoutError,
    StreamClosedError,
    StreamFencedError,
    StreamNotFoundError,
)

from ponor_broker.coordination.transactional_append import BatchRefusedError
from ponor_broker.partitions.identity import PartitionKey

MESSAGE_CHARS_MAX: Final = 512
"""Longer messages are cut. A message may contain a topic name of 32 KiB from the request, and a request may
name thousands of partitions of such a topic: the answer would be thousands of times as large as the request.
"""


class RecordError(NamedTuple):
    """The problem of one record of a refused batch; `record` counts from 0."""

    record: int
    message: str


def cut_message(message: str) -> str:
    """Return the message, cut to `MESSAGE_CHARS_MAX` characters."""
    return message if len(message) <= MESSAGE_CHARS_MAX else message[: MESSAGE_CHARS_MAX - 1] + "…"


class PartitionError(BatchRefusedError):
    """A request that a partition refused: code for the client, message, and problems of single records."""

    def __init__(self, code: ErrorCode, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(code, cut_message(message))
        self.record_errors = record_errors


class NotOneBatchError(PartitionError):
    """The records of a Produce request are not exactly one batch of a known format. The request is refused
    before the partition checks the records.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class BrokerFencedError(PartitionError):
    """This broker must not answer (`Serving`): its image may be outdated."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker must not answer: {reason}")


class PartitionInTransitError(PartitionError):
    """The partition is changing its leader. Requests that can wait should wait; others get
    NOT_LEADER_OR_FOLLOWER.

    `key` identifies the partition for `TransitParking`.
    """

    def __init__(self, key: PartitionKey, message: str) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        self.key = key


def storage_error(error: BaseException) -> PartitionError:
    """Translate an exception of the storage layer for the client."""
    if isinstance(error, PartitionError):
        return error
    return PartitionError(_code_of(error), f"{type(error).__name__}: {error}")


def _code_of(error: BaseException) -> ErrorCode:
    match error:
        case AppendBackpressureError() | ReadTimeoutError() | TimeoutError():
            # Every client retries REQUEST_TIMED_OUT without a metadata refresh: the leader is
            # correct, only slow or full.
            return ErrorCode.REQUEST_TIMED_OUT
        case StreamFencedError() | StreamClosedError() | StreamNotFoundError():
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        case OffsetOutOfRangeError():
            return ErrorCode.OFFSET_OUT_OF_RANGE
        case _:
            return ErrorCode.KAFKA_STORAGE_ERROR
