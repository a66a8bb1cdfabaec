"""The interface of streams that `partitions/` uses, and a read that raises only storage errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ponor_metadata.nouns.streams import StreamRow
from ponor_runtime.budgets import BudgetExceededError
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_runtime.object_store import ObjectStoreError
from s3stream.errors import S3StreamError
from s3stream.ports import StreamState
from s3stream.records import StreamRecord


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


class PartitionStream(Protocol):
    """An open stream; see `s3stream.stream.Stream` for the contract of each method."""

    @property
    def stream_id(self) -> StreamId: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def confirmed_offset(self) -> int: ...

    @property
    def committed_offset(self) -> int: ...

    @property
    def payload_bytes_max(self) -> int: ...

    def append(
        self, payload: Buffer, *, count: int, max_timestamp: int, min_timestamp: int = ...
    ) -> asyncio.Future[None]: ...

    def append_nowait(
        self,
        payload: Buffer,
        *,
        count: int,
        max_timestamp: int,
        min_timestamp: int = ...,
        on_durable: Callable[[BaseException | None], None],
    ) -> None: ...

    def fetch_cached(self, start_offset: int, max_bytes: int) -> list[StreamRecord] | None: ...

    async def fetch(self, start_offset: int, max_bytes: int) -> list[StreamRecord]: ...

    async def trim(self, new_start_offset: int) -> None: ...

    def refuse_appends(self) -> None: ...

    def accept_appends(self) -> None: ...

    def end(self) -> StreamState: ...

    def close_refused(self) -> None: ...

    async def close(self) -> None: ...

    def abandon(self) -> None: ...


class StreamSource(Protocol):
    """Creates and opens streams; see `s3stream.client.StreamClient`."""

    async def create_streams(self, tags: Sequence[Mapping[str, str]]) -> list[StreamId]: ...

    async def open_streams(
        self, wanted: Sequence[tuple[StreamId, StreamEpoch]]
    ) -> Sequence[PartitionStream]: ...

    def held(self, stream_id: StreamId) -> PartitionStream | None: ...

    async def delete_streams(self, ids: Sequence[StreamId]) -> None: ...

    async def read_together(
        self, parts: Sequence[tuple[StreamId, int]], max_bytes: int
    ) -> list[list[StreamRecord]]: ...

    async def force_upload(self, *, at_once: bool = False) -> None: ...

    def on_upload(self, stream_id: StreamId, hook: Callable[[], bool]) -> None: ...


def state_of(row: StreamRow) -> StreamState:
    """Return a stream as the image shows it."""
    return StreamState(row.stream_id, row.stream_epoch, row.start_offset, row.end_offset)


def observe(durable: asyncio.Future[None]) -> None:
    """Ignore the outcome of an append: if it fails, every later append of the stream fails too, and
    those are awaited.
    """
    durable.add_done_callback(lambda done: done.cancelled() or done.exception())
