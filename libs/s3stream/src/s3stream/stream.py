"""Streams as their owner uses them: append, fetch, trim, close. A stream is an endless sequence of record batches
addressed by offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from ponor_runtime.disk import Buffer
from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_runtime.telemetry import Telemetry

from s3stream.errors import OffsetOutOfRangeError, StreamClosedError, StreamNotFoundError
from s3stream.group_commit import OnDurable
from s3stream.open_stream import OpenStream
from s3stream.ports import StreamManager, StreamState
from s3stream.reader import ObjectStreamReader
from s3stream.records import OFFSET_MAX, RECORD_COUNT_MAX, TIMESTAMP_MIN, StreamRecord
from s3stream.storage import Storage


class Stream:
    """One stream that this node holds open at `epoch`. Made by `StreamClient.open_streams`.

    Readable are the offsets [start_offset, confirmed_offset); `confirmed_offset` advances when an append is durable and cached, just before
    its future resolves. After a failed append the node cannot acknowledge anything any more and stops.
    """

    def __init__(
        self,
        state: OpenStream,
        *,
        storage: Storage,
        streams: StreamManager,
        reader: ObjectStreamReader,
        telemetry: Telemetry,
        on_abandoned: Callable[[Stream], None],
    ) -> None:
        self._state: Final = state
        self._storage = storage
        self._streams = streams
        self._reader = reader
        self._on_abandoned = on_abandoned
        self._refuses_appends = False
        self._ended = False
        self._closing: asyncio.Future[None] | None = None
        self._hits = telemetry.counter("ponor_log_cache_reads_total", result="hit")
        self._misses = telemetry.counter("ponor_log_cache_reads_total", result="miss")

    @property
    def stream_id(self) -> StreamId:
        """Which stream this is."""
        return self._state.stream_id

    @property
    def epoch(self) -> StreamEpoch:
        """The epoch under which this node owns it."""
        return self._state.epoch

    @property
    def start_offset(self) -> int:
        """First offset that can be read."""
        return self._state.start_offset

    @property
    def next_offset(self) -> int:
        """The offset of the next append."""
        return self._state.next_offset

    @property
    def confirmed_offset(self) -> int:
        """One past the last offset that is durable and can be read."""
        return self._state.confirmed_offset

    @property
    def committed_offset(self) -> int:
        """One past the last offset that is in a committed object."""
        return self._state.committed_offset

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload that an append may have."""
        return self._storage.payload_bytes_max

    @property
    def closed(self) -> bool:
        """Whether it takes no appends any more."""
        return self._refuses_appends

    def append(
        self, payload: Buffer, *, count: int, max_timestamp: int, min_timestamp: int = TIMESTAMP_MIN
    ) -> asyncio.Future[None]:
        """`append_nowait` for those who wait: the future resolves, or has the error. Cancelling it takes nothing back."""
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.append_nowait(
            payload,
            count=count,
            max_timestamp=max_timestamp,
            min_timestamp=min_timestamp,
            on_durable=partial(_settle, durable),
        )
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
        """Append a record at `next_offset` (read it before the call); nothing is copied, so the payload must not change any more.

        Args:
            payload: opaque bytes; a memoryview must be one of bytes.
            count: offsets that the record covers, 1 to 2^31 - 1.
            max_timestamp: milliseconds since 1970, -1 for none.
            min_timestamp: no timestamp in the payload lies below it, -1 ("none") among them; omitted if unknown.
            on_durable: called once, from the loop and never from within this call, in the order of the stream's appends: with None when
                the record is durable and in the log cache, or with the `StorageFailedError`. It may append; it must not raise.

        Raises:
            AppendBackpressureError: not taken; try again later.
            StreamClosedError: the stream was closed.
            StorageFailedError: the node cannot store anything any more.
            ValueError: the count is out of bounds, or the record is larger than the log cache.
        """
        # What hooks append belongs to data that was taken before: it may come while the stream closes, until `end` was called.
        if self._refuses_appends and (self._ended or not self._storage.hooks_running):
            raise StreamClosedError(f"stream {self._state.stream_id} at epoch {self._state.epoch} is closed")
        if not 0 < count <= RECORD_COUNT_MAX or self._state.next_offset > OFFSET_MAX - count:
            raise ValueError(f"stream {self._state.stream_id}: a record cannot have a count of {count}")
        self._storage.append(self._state, payload, count, max_timestamp, min_timestamp, on_durable)

    def fetch_cached(self, start_offset: int, max_bytes: int) -> list[StreamRecord] | None:
        """Read from memory alone; payloads are views of what was appended.

        Returns:
            Contiguous records from the one that contains `start_offset` on: at least one however big, then as many as have
            payloads within `max_bytes`; [] at the confirmed end; None when the first one is not in the log cache.

        Raises:
            OffsetOutOfRangeError: outside of [start_offset, confirmed_offset].
        """
        state = self._state
        if state.start_offset <= start_offset < state.confirmed_offset:
            records = state.chain.fetch(start_offset, max_bytes)
            if records:
                self._hits.add(1)
            return records
        self._check_range(start_offset)
        return []

    async def fetch(
        self, start_offset: int, max_bytes: int, *, deadline_ms: int | None = None
    ) -> list[StreamRecord]:
        """Read from objects what `fetch_cached` did not find, and continue in memory.

        The log cache only loses records at its front, so the miss of an earlier `fetch_cached` stays true and the
        cache is not searched again. A caller that did not search it gets records from memory as well.

        Args:
            start_offset: see `fetch_cached`.
            max_bytes: see `fetch_cached`.
            deadline_ms: longest duration; `fetch_timeout_ms` of the settings if not given.

        Returns:
            As `fetch_cached`, never None.

        Raises:
            OffsetOutOfRangeError: outside of [start_offset, confirmed_offset].
            ReadTimeoutError: the store or the metadata did not answer in time.
            ObjectCorruptError: an object is damaged.
        """
        state = self._state
        self._check_range(start_offset)
        cached_from = state.chain.first_offset
        end_offset = state.confirmed_offset if cached_from is None else cached_from
        if start_offset >= end_offset:
            cached = self.fetch_cached(start_offset, max_bytes)
            assert cached is not None, "the cache holds everything from its first offset on"
            return cached
        self._misses.add(1)
        records = await self._reader.read(
            state.stream_id, start_offset, end_offset, max_bytes, timeout_ms=deadline_ms
        )
        return self._continue_from_cache(records, max_bytes)

    async def trim(self, new_start_offset: int) -> None:
        """Drop everything below an offset; below the present start nothing happens.

        Raises:
            OffsetOutOfRangeError: beyond the confirmed end.
            StreamFencedError: another owner took the stream.
        """
        state = self._state
        if new_start_offset <= state.start_offset:
            return
        if new_start_offset > state.confirmed_offset:
            raise OffsetOutOfRangeError(
                f"stream {state.stream_id} ends at {state.confirmed_offset}; it cannot be trimmed to {new_start_offset}"
            )
        assert state.committed_offset <= state.confirmed_offset <= state.next_offset
        if new_start_offset > state.committed_offset:
            await self._storage.force_upload()  # the controller has the stream up to its committed end only
        await self._streams.trim_streams([(state.stream_id, state.epoch, new_start_offset)])
        # Not before: a trim that failed must be one that can be tried again.
        state.start_offset = max(state.start_offset, new_start_offset)

    async def close(self) -> None:
        """Give the stream up: no more appends, everything uploaded, closed at its end offset.

        Repeated calls wait for the first, and a caller that is cancelled does not stop it. Close a stream whose upload hook appends
        to others before those.

        Raises:
            StorageFailedError: the write-ahead log or an upload failed; the stream stays open for recovery to close.
            StreamFencedError: another owner took the stream.
        """
        self._refuses_appends = True
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self.upload_all()
            if not self._storage.is_deleted(self._state.stream_id):
                with suppress(StreamNotFoundError):  # deleted a moment ago
                    await self._streams.close_streams([self.end()])
        finally:
            self.abandon()

    def on_upload(self, hook: Callable[[], bool]) -> None:
        """See `StreamClient.on_upload`."""
        self._storage.set_upload_hook(self._state, hook)

    def refuse_appends(self) -> None:
        """Refuse appends: the stream is about to be closed together with others."""
        self._refuses_appends = True

    def accept_appends(self) -> None:
        """Undo `refuse_appends`; only before `end`."""
        assert not self._ended, f"stream {self._state.stream_id} has ended"
        self._refuses_appends = False

    def close_refused(self) -> None:
        """Undo `end`: the controller refused to close the stream, which is still open here at the same epoch."""
        self._ended = False

    def abandon(self) -> None:
        """Drop the stream: it was closed or deleted, or another owner took it."""
        self._refuses_appends = self._ended = True
        self._storage.unregister(self._state)
        self._on_abandoned(self)

    async def upload_all(self) -> None:
        """Return when all that was appended is in committed objects, or dropped because the stream was deleted."""
        state = self._state
        while state.committed_offset < state.next_offset and not self._storage.is_deleted(state.stream_id):
            await self._storage.force_upload()

    def end(self) -> StreamState:
        """Return the final end of the stream; from here on hooks may not append either."""
        state = self._state
        assert state.committed_offset == state.next_offset, "everything is uploaded"
        self._refuses_appends = self._ended = True
        return StreamState(state.stream_id, state.epoch, state.start_offset, state.next_offset)

    def _check_range(self, start_offset: int) -> None:
        if not self._state.start_offset <= start_offset <= self._state.confirmed_offset:
            raise OffsetOutOfRangeError(
                f"stream {self._state.stream_id}: offset {start_offset} is outside of"
                f" [{self._state.start_offset}, {self._state.confirmed_offset}]"
            )

    def _continue_from_cache(self, records: list[StreamRecord], max_bytes: int) -> list[StreamRecord]:
        """Append what memory holds behind records read from objects, as far as it fits."""
        assert records, "a read below the end finds a record"
        room_bytes = max_bytes - sum(len(record.payload) for record in records)
        if room_bytes > 0:
            more = self._state.chain.fetch(records[-1].end_offset, room_bytes)
            if more and len(more[0].payload) <= room_bytes:
                assert more[0].base_offset == records[-1].end_offset, "objects and memory meet"
                records.extend(more)
        return records


def _settle(durable: asyncio.Future[None], error: BaseException | None) -> None:
    if durable.done():  # the caller cancelled it; the record is there all the same
        return
    if error is None:
        durable.set_result(None)
    else:
        durable.set_exception(error)
