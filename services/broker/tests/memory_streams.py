"""Streams in memory that fulfil the port; the test controls durability."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ponor_runtime.disk import Buffer
from ponor_runtime.identity import StreamEpoch, StreamId
from s3stream.errors import (
    AppendBackpressureError,
    OffsetOutOfRangeError,
    StorageFailedError,
    StreamClosedError,
)
from s3stream.ports import StreamState
from s3stream.records import TIMESTAMP_MIN, StreamRecord

OnDurable: TypeAlias = Callable[[BaseException | None], None]


class MemoryStream:
    """Appends become durable immediately, or on the test's call (`hold`, then `confirm` or `fail`)."""

    payload_bytes_max = 1 << 30

    def __init__(self, stream_id: int, epoch: int = 0) -> None:
        self.stream_id = StreamId(stream_id)
        self.epoch = StreamEpoch(epoch)
        self.start_offset = 0
        self.next_offset = 0
        self.confirmed_offset = 0
        self.committed_offset = 0
        self.records: list[StreamRecord] = []
        self.hold = False
        self.is_full = False
        self.is_cold = False
        self.closed = False
        self.refuses_appends = False
        self.waiting: deque[tuple[StreamRecord, OnDurable]] = deque()

    def append(
        self, payload: Buffer, *, count: int, max_timestamp: int, min_timestamp: int = TIMESTAMP_MIN
    ) -> asyncio.Future[None]:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(error: BaseException | None) -> None:
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        self.append_nowait(
            payload,
            count=count,
            max_timestamp=max_timestamp,
            min_timestamp=min_timestamp,
            on_durable=settle,
        )
        self._confirm_unless_held()
        return durable

    def append_nowait(
        self,
        payload: Buffer,
        *,
        count: int,
        max_timestamp: int,
        min_timestamp: int = TIMESTAMP_MIN,
        on_durable: OnDurable,
    ) -> None:
        if self.closed or self.refuses_appends:
            raise StreamClosedError("closed")
        if self.is_full:
            raise AppendBackpressureError("full")
        record = StreamRecord(
            self.stream_id, self.epoch, self.next_offset, count, max_timestamp, payload, min_timestamp
        )
        self.next_offset += count
        self.waiting.append((record, on_durable))
        if not self.hold:
            asyncio.get_running_loop().call_soon(self._confirm_unless_held)

    def _confirm_unless_held(self) -> None:
        if not self.hold:
            self.confirm()

    def confirm(self, count: int | None = None) -> None:
        """Make the oldest `count` appends durable, all by default."""
        for _ in range(len(self.waiting) if count is None else count):
            record, on_durable = self.waiting.popleft()
            self.records.append(record)
            self.confirmed_offset = record.end_offset
            on_durable(None)

    def fail(self) -> None:
        """Fail the log: no waiting append becomes durable."""
        self.closed = True
        while self.waiting:
            _, on_durable = self.waiting.popleft()
            on_durable(StorageFailedError("the disk is gone"))

    def fetch_cached(self, start_offset: int, max_bytes: int) -> list[StreamRecord] | None:
        return None if self.is_cold else self._read(start_offset, max_bytes)

    async def fetch(self, start_offset: int, max_bytes: int) -> list[StreamRecord]:
        await asyncio.sleep(0)
        return self._read(start_offset, max_bytes)

    def _read(self, start_offset: int, max_bytes: int) -> list[StreamRecord]:
        if not self.start_offset <= start_offset <= self.confirmed_offset:
            raise OffsetOutOfRangeError(f"{start_offset}")
        found: list[StreamRecord] = []
        first = bisect_right(self.records, start_offset, key=lambda record: record.end_offset)
        for at in range(first, len(self.records)):
            max_bytes -= len(self.records[at].payload)
            if found and max_bytes < 0:
                break
            found.append(self.records[at])
        return found

    async def trim(self, new_start_offset: int) -> None:
        self.start_offset = max(self.start_offset, new_start_offset)
        self.records = [record for record in self.records if record.end_offset > self.start_offset]

    def refuse_appends(self) -> None:
        self.refuses_appends = True

    def accept_appends(self) -> None:
        assert not self.closed
        self.refuses_appends = False

    def end(self) -> StreamState:
        assert self.committed_offset == self.next_offset
        self.closed = True
        return StreamState(self.stream_id, self.epoch, self.start_offset, self.next_offset)

    def close_refused(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True

    def abandon(self) -> None:
        self.closed = True


class MemoryStreams:
    """A `StreamSource`: streams keep their records over opens, as in a cluster that never loses anything."""

    def __init__(self) -> None:
        self.streams: dict[int, MemoryStream] = {}
        self.tags: dict[int, Mapping[str, str]] = {}
        self.hooks: dict[int, Callable[[], bool]] = {}

    async def create_streams(self, tags: Sequence[Mapping[str, str]]) -> list[StreamId]:
        created = []
        for one in tags:
            stream_id = 100 + len(self.streams)
            self.streams[stream_id] = MemoryStream(stream_id, -1)
            self.tags[stream_id] = one
            created.append(StreamId(stream_id))
        return created

    async def open_streams(self, wanted: Sequence[tuple[StreamId, StreamEpoch]]) -> list[MemoryStream]:
        opened = []
        for stream_id, epoch in wanted:
            old = self.streams[stream_id]
            stream = MemoryStream(stream_id, epoch)
            stream.records = list(old.records)
            stream.start_offset = old.start_offset
            stream.next_offset = stream.confirmed_offset = stream.committed_offset = old.confirmed_offset
            self.streams[stream_id] = stream
            opened.append(stream)
        return opened

    def held(self, stream_id: StreamId) -> MemoryStream | None:
        stream = self.streams.get(stream_id)
        return None if stream is None or stream.closed or stream.epoch < 0 else stream

    async def delete_streams(self, ids: Sequence[StreamId]) -> None:
        for stream_id in ids:
            self.streams.pop(stream_id, None)

    async def read_together(
        self, parts: Sequence[tuple[StreamId, int]], max_bytes: int
    ) -> list[list[StreamRecord]]:
        return [[] for _ in parts]  # as it may: every stream is then read by itself

    async def force_upload(self, *, at_once: bool = False) -> None:
        await asyncio.sleep(0)
        for stream in self.streams.values():
            stream.committed_offset = stream.confirmed_offset

    def on_upload(self, stream_id: StreamId, hook: Callable[[], bool]) -> None:
        self.hooks[stream_id] = hook
