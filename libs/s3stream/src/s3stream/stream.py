"""The interface of a stream for its owner: append, fetch, trim, close."""

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
    """One stream that this node holds open at `epoch`. Created by `StreamClient.open_streams`.

    Offsets [start_offset, confirmed_offset) are readable; `confirmed_offset` advances when an
    append is durable and cached, just before its future resolves. After a failed append, the node
    can acknowledge nothing more and stops.
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
        """Id of the stream."""
        return self._state.stream_id

    @property
    def epoch(self) -> StreamEpoch:
        """Epoch under which this node owns the stream."""
        return self._state.epoch

    @property
    def start_offset(self) -> int:
        """First readable offset."""
        return self._state.start_offset

    @property
    def next_offset(self) -> int:
        """Offset of the next append."""
        return self._state.next_offset

    @property
    def confirmed_offset(self) -> int:
        """One past the last durable, readable offset."""
        return self._state.confirmed_offset

    @property
    def committed_offset(self) -> int:
        """One past the last offset in a committed object."""
        return self._state.committed_offset

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload of an append."""
        return self._storage.payload_bytes_max

    @property
    def closed(self) -> bool:
        """Whether the stream refuses appends."""
        return self._refuses_appends

    def append(
        self, payload: Buffer, *, count: int, max_timestamp: int, min_timestamp: int = TIMESTAMP_MIN
    ) -> asyncio.Future[None]:
        """Append a record and return a future that resolves when it is durable; see `append_nowait`.
        Cancelling the future does not undo the append.
        """
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
        """Append a record at `next_offset`, which the caller reads before the call. The payload is
        not copied and must not change afterwards.

        Args:
            payload: opaque bytes; a memoryview must have byte elements.
            count: offsets that the record covers, 1 to 2^31 - 1.
            max_timestamp: milliseconds since 1970, -1 for none.
            min_timestamp: lower bound of all timestamps in the payload, including -1 ("none");
                omitted if unknown.
            on_durable: called once, from the event loop and never within this call, in the order of
                the stream's appends: with None when the record is durable and in the log cache, or
                with the `StorageFailedError`. It may append and must not raise.

        Raises:
            AppendBackpressureError: the record was refused; retry later.
            StreamClosedError: the stream was closed.
            StorageFailedError: the node's storage failed.
            ValueError: the count is out of bounds, or the payload is larger than `payload_bytes_max`.
        """
        # Appends of hooks describe earlier data, so they are accepted while the stream closes,
        # until `end` was called.
        if self._refuses_appends and (self._ended or not self._storage.hooks_running):
            raise StreamClosedError(f"stream {self._state.stream_id} at epoch {self._state.epoch} is closed")
        if not 0 < count <= RECORD_COUNT_MAX or self._state.next_offset > OFFSET_MAX - count:
            raise ValueError(f"stream {self._state.stream_id}: a record cannot have {count} offsets here")
        self._storage.append(self._state, payload, count, max_timestamp, min_timestamp, on_durable)

    def fetch_cached(self, start_offset: int, max_bytes: int) -> list[StreamRecord] | None:
        """Read from memory only; payloads are views of the appended data.

        Returns:
            Contiguous records from the one that contains `start_offset` on: at least one regardless
                of its size, then as many as have payloads within `max_bytes`. [] at the confirmed
                end; None when the first record is not in the log cache.

        Raises:
            OffsetOutOfRangeError: outside [start_offset, confirmed_offset].
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
        """Read records from objects after `fetch_cached` returned None, and continue in memory.

        The log cache loses records only at its front, so an earlier miss remains a miss and the
        cache is not searched again. A caller that did not call `fetch_cached` gets records from
        memory as well.

        Args:
            start_offset: see `fetch_cached`.
            max_bytes: see `fetch_cached`.
            deadline_ms: longest duration; defaults to `fetch_timeout_ms` of the settings.

        Returns:
            As `fetch_cached`, never None.

        Raises:
            OffsetOutOfRangeError: outside [start_offset, confirmed_offset].
            ReadTimeoutError: the store or the metadata did not answer in time.
            ObjectCorruptError: an object is damaged.
        """
        state = self._state
        self._check_range(start_offset)
        cached_from = state.chain.first_offset
        end_offset = state.confirmed_offset if cached_from is None else cached_from
        if start_offset >= end_offset:
            cached = self.fetch_cached(start_offset, max_bytes)
            assert cached is not None, "the cache lacks an offset above its first offset"
            return cached
        self._misses.add(1)
        records = await self._reader.read(
            state.stream_id, start_offset, end_offset, max_bytes, timeout_ms=deadline_ms
        )
        return self._continue_from_cache(records, max_bytes)

    async def trim(self, new_start_offset: int) -> None:
        """Drop all data below an offset. An offset below the current start changes nothing.

        Raises:
            OffsetOutOfRangeError: beyond the confirmed end.
            StreamFencedError: another owner took over the stream.
        """
        state = self._state
        if new_start_offset <= state.start_offset:
            return
        if new_start_offset > state.confirmed_offset:
            raise OffsetOutOfRangeError(
                f"stream {state.stream_id} ends at {state.confirmed_offset}; it cannot be trimmed to"
                f" {new_start_offset}"
            )
        assert state.committed_offset <= state.confirmed_offset <= state.next_offset
        if new_start_offset > state.committed_offset:
            await self._storage.force_upload()  # the controller has the stream only up to its committed end
        await self._streams.trim_streams([(state.stream_id, state.epoch, new_start_offset)])
        # Updated only after success, so that a failed trim can be retried.
        state.start_offset = max(state.start_offset, new_start_offset)

    async def close(self) -> None:
        """Close the stream: refuse appends, upload everything, close it at its end offset.

        Repeated calls wait for the first, and cancelling a caller does not stop the close. If the upload hook
        of this stream appends to other streams, close this stream before them.

        Raises:
            StorageFailedError: the write-ahead log or an upload failed; the stream stays open, and
                recovery closes it.
            StreamFencedError: another owner took over the stream.
        """
        self._refuses_appends = True
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self.upload_all()
            if not self._storage.is_deleted(self._state.stream_id):
                with suppress(StreamNotFoundError):  # just deleted
                    await self._streams.close_streams([self.end()])
        finally:
            self.abandon()

    def on_upload(self, hook: Callable[[], bool]) -> None:
        """Call `hook` before a block with data of this stream is sealed; see `StreamClient.on_upload`."""
        self._storage.set_upload_hook(self._state, hook)

    def refuse_appends(self) -> None:
        """Refuse appends, because the stream will be closed together with others."""
        self._refuses_appends = True

    def accept_appends(self) -> None:
        """Undo `refuse_appends`; only before `end`."""
        assert not self._ended, f"stream {self._state.stream_id} has ended and cannot accept appends"
        self._refuses_appends = False

    def close_refused(self) -> None:
        """Undo `end` after the controller refused to close the stream, which is still open here at
        the same epoch.
        """
        self._ended = False

    def abandon(self) -> None:
        """Drop the stream, because it was closed or deleted, or another owner took it over."""
        self._refuses_appends = self._ended = True
        self._storage.unregister(self._state)
        self._on_abandoned(self)

    async def upload_all(self) -> None:
        """Return when everything appended is in committed objects, or was dropped because the
        stream was deleted.
        """
        state = self._state
        while state.committed_offset < state.next_offset and not self._storage.is_deleted(state.stream_id):
            await self._storage.force_upload()

    def end(self) -> StreamState:
        """Return the final end of the stream. From here on, hooks must not append either."""
        state = self._state
        assert state.committed_offset == state.next_offset, (
            "the stream ends before all its records are uploaded"
        )
        self._refuses_appends = self._ended = True
        return StreamState(state.stream_id, state.epoch, state.start_offset, state.next_offset)

    def _check_range(self, start_offset: int) -> None:
        if not self._state.start_offset <= start_offset <= self._state.confirmed_offset:
            raise OffsetOutOfRangeError(
                f"stream {self._state.stream_id}: offset {start_offset} is outside of"
                f" [{self._state.start_offset}, {self._state.confirmed_offset}]"
            )

    def _continue_from_cache(self, records: list[StreamRecord], max_bytes: int) -> list[StreamRecord]:
        """Append cached records to records that were read from objects, as far as they fit."""
        assert records, "a read below the end found no record"
        room_bytes = max_bytes - sum(len(record.payload) for record in records)
        if room_bytes > 0:
            more = self._state.chain.fetch(records[-1].end_offset, room_bytes)
            if more and len(more[0].payload) <= room_bytes:
                assert more[0].base_offset == records[-1].end_offset, (
                    "records in memory do not continue the records in objects"
                )
                records.extend(more)
        return records


def _settle(durable: asyncio.Future[None], error: BaseException | None) -> None:
    if durable.done():  # the caller cancelled it; the record remains appended
        return
    if error is None:
        durable.set_result(None)
    else:
        durable.set_exception(error)
