"""Reads of streams with one family of errors."""

from __future__ import annotations

from ponor_runtime.budgets import BudgetExceededError
from ponor_runtime.object_store import ObjectStoreError
from s3stream.errors import S3StreamError
from s3stream.records import StreamRecord

from ponor_broker.partitions.log.stream_port import PartitionStream


class StreamUnreadableError(S3StreamError):
    """The object store failed, or too many reads are running: the same read may succeed later."""


async def fetch(stream: PartitionStream, start_offset: int, max_bytes: int) -> list[StreamRecord]:
    """`stream.fetch`, with errors of the object store and exhausted read budgets as storage errors,
    which are all retriable.

    Raises:
        S3StreamError: out of range, unreadable, or too slow.
    """
    try:
        return await stream.fetch(start_offset, max_bytes)
    except (ObjectStoreError, BudgetExceededError) as error:
        raise StreamUnreadableError(f"stream {stream.stream_id}, offset {start_offset}: {error}") from error
