"""Reading a stream with one family of errors.

What lives here: the one call through which partitions read what may lie in objects. The object store's own errors and exhausted read budgets
become a storage error, so that callers have one thing to catch; all of it is retriable.
"""

from __future__ import annotations

from ponor_runtime.budgets import BudgetExceededError
from ponor_runtime.object_store import ObjectStoreError
from s3stream.errors import S3StreamError
from s3stream.records import StreamRecord

from ponor_broker.partitions.log.stream_port import PartitionStream


class StreamUnreadableError(S3StreamError):
    """The object store did not deliver, or too much is being read: the same read may succeed later."""


async def fetch(stream: PartitionStream, start_offset: int, max_bytes: int) -> list[StreamRecord]:
    """`stream.fetch`.

    Raises:
        S3StreamError: out of range, unreadable, or too slow.
    """
    try:
        return await stream.fetch(start_offset, max_bytes)
    except (ObjectStoreError, BudgetExceededError) as error:
        raise StreamUnreadableError(f"stream {stream.stream_id}, offset {start_offset}: {error}") from error
