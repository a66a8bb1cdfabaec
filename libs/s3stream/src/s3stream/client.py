"""Client of a node's streams: assembles the write and read paths, recovers, opens and closes streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_runtime.object_store import ObjectStore
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks

from s3stream.errors import StorageFailedError, StreamClosedError, StreamFencedError, StreamNotFoundError
from s3stream.object_upload import ObjectUploader
from s3stream.open_stream import OpenStream
from s3stream.ports import ObjectManager, StreamManager, StreamState
from s3stream.reader import ObjectStreamReader
from s3stream.records import StreamRecord
from s3stream.recovery import NOTHING_RECOVERED, STREAMS_PER_CALL_MAX, Recovery, RecoveryReport
from s3stream.settings import StorageSettings
from s3stream.storage import Storage
from s3stream.stores.metered import register_cost
from s3stream.stream import Stream
from s3stream.wal import WriteAheadLog

CALLS_IN_FLIGHT_MAX: Final = 4
"""Maximum number of concurrent calls with which a closing client closes groups of streams."""


class StreamClient:
    """All streams of one node. Create it with `start`; the caller closes it."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        wal: WriteAheadLog,
        streams: StreamManager,
        storage: Storage,
        reader: ObjectStreamReader,
        recovery: RecoveryReport,
    ) -> None:
        self._runtime = runtime
        self._wal = wal
        self._streams = streams
        self._storage = storage
        self._reader = reader
        self._open: dict[StreamId, Stream] = {}
        self._closed = False
        self.recovery = recovery

    @classmethod
    async def start(
        cls,
        *,
        runtime: Runtime,
        store: ObjectStore,
        wal: WriteAheadLog,
        streams: StreamManager,
        objects: ObjectManager,
        settings: StorageSettings,
        tasks: BackgroundTasks,
        recover: bool = True,
    ) -> StreamClient:
        """Recover the data of this node's previous process, then accept operations. `close` closes
        the log but not the store.

        Args:
            runtime: ports of this process.
            store: store of the objects.
            wal: an open log; with `recover`, nothing may have been appended to it.
            streams: see the port.
            objects: see the port.
            settings: storage settings.
            tasks: supervises background tasks.
            recover: whether the log may contain data of earlier processes. False for a log in the
                object store, which belongs to this process's epoch; `takeover.recover_wal` recovers
                the logs of older epochs.

        Raises:
            WalCorruptError: see `recovery`.
            CommitRefusedError: this process no longer owns its streams.
        """
        uploader = ObjectUploader(runtime, store, objects, settings)
        register_cost(runtime.telemetry, settings)
        report = NOTHING_RECOVERED
        if recover:
            with runtime.telemetry.span("ponor.recovery"):
                report = await Recovery(
                    runtime=runtime, wal=wal, streams=streams, uploader=uploader, settings=settings
                ).run()
        runtime.telemetry.gauge("ponor_wal_recovery_seconds", lambda: report.duration_ms / 1000)
        runtime.telemetry.gauge("ponor_wal_recovered_bytes", lambda: report.bytes)
        storage = Storage(
            runtime=runtime, wal=wal, uploader=uploader, streams=streams, settings=settings, tasks=tasks
        )
        storage.start()
        reader = _reader(runtime, store, objects, settings)
        return cls(runtime=runtime, wal=wal, streams=streams, storage=storage, reader=reader, recovery=report)

    async def create_streams(self, tags: Sequence[Mapping[str, str]]) -> list[StreamId]:
        """Create closed, empty streams, one for each set of tags."""
        created: list[StreamId] = []
        for start in range(0, len(tags), STREAMS_PER_CALL_MAX):
            created.extend(await self._streams.create_streams(tags[start : start + STREAMS_PER_CALL_MAX]))
        return created

    async def open_streams(self, wanted: Sequence[tuple[StreamId, StreamEpoch]]) -> list[Stream]:
        """Open streams at new epochs and return them in the order of the arguments. A stream that
        is already open here at its epoch is returned unchanged.

        Each group of 500 streams is opened atomically.

        Raises:
            StreamFencedError: a stream is already at a newer epoch.
            StreamNotClosedError: a stream is still open at an older epoch.
            StreamNotFoundError: a stream does not exist.
            StreamClosedError: the client was closed.
        """
        missing = [(stream_id, epoch) for stream_id, epoch in wanted if not self._holds(stream_id, epoch)]
        for start in range(0, len(missing), STREAMS_PER_CALL_MAX):
            self._check_open()
            for state in await self._streams.open_streams(missing[start : start + STREAMS_PER_CALL_MAX]):
                # a concurrent call may have opened it first
                if not self._holds(state.stream_id, state.epoch):
                    self._add(state)
        self._check_open()
        return [self._open[stream_id] for stream_id, _ in wanted]

    def held(self, stream_id: StreamId) -> Stream | None:
        """Return the stream if it is open here, or is still being closed; otherwise None."""
        return self._open.get(stream_id)

    async def read_together(
        self, parts: Sequence[tuple[StreamId, int]], max_bytes: int
    ) -> list[list[StreamRecord]]:
        """Read small amounts of many open streams, given as (id, start offset), from objects.
        Adjacent data is read with one GET.

        A result may be empty, or shorter than a result of `Stream.fetch` would be. The caller then calls
        `fetch`, which returns the data or raises the error.
        """
        uploaded: list[tuple[int, tuple[StreamId, int, int]]] = []
        for number, (stream_id, start_offset) in enumerate(parts):
            stream = self._open.get(stream_id)
            if stream is not None and stream.start_offset <= start_offset < stream.committed_offset:
                uploaded.append((number, (stream_id, start_offset, stream.committed_offset)))
        answer: list[list[StreamRecord]] = [[] for _ in parts]
        found = await self._reader.read_together([part for _, part in uploaded], max_bytes)
        for (number, _), records in zip(uploaded, found, strict=True):
            answer[number] = records
        return answer

    async def delete_streams(self, ids: Sequence[StreamId]) -> None:
        """Delete streams and drop their data that was not uploaded. Absent streams count as deleted."""
        for start in range(0, len(ids), STREAMS_PER_CALL_MAX):
            await self._streams.delete_streams(ids[start : start + STREAMS_PER_CALL_MAX])
        for stream_id in ids:
            if (stream := self._open.get(stream_id)) is not None:
                stream.abandon()

    def on_upload(self, stream_id: StreamId, hook: Callable[[], bool]) -> None:
        """Call `hook` before a block with data of this stream is sealed. The hook's appends become
        part of that block.

        The hook is synchronous, may append to open streams, and must not raise. Appends of hooks do
        not trigger hooks. A hook that returns True has more work: it is called again in a later turn
        of the event loop, before the same seal. A long hook should work for a millisecond or two per
        call. If many hooks are due, they run over several turns. Data appended in the meantime
        becomes part of the same block, and the hook of its stream runs again before the seal. If data
        arrives faster than hooks run, the hook runs again only before the next seal.

        Raises:
            StreamClosedError: the stream is not open here.
        """
        stream = self._open.get(stream_id)
        if stream is None or stream.closed:
            raise StreamClosedError(f"stream {stream_id} is not open at this node")
        stream.on_upload(hook)

    async def force_upload(self, *, at_once: bool = False) -> None:
        """Return when everything appended before this call is in committed objects. With `at_once`,
        do not wait for other forced uploads to join.
        """
        await self._storage.force_upload(at_once=at_once)

    async def close(self, *, upload_timeout_ms: int | None = None) -> bool:
        """Refuse appends, upload everything, close all streams, trim and close the log. Idempotent.

        `upload_timeout_ms` limits the upload, and then separately the closing of the streams. If one of the
        two takes longer, the streams stay open and the node's next start recovers them from the log; no
        acknowledged data is lost.

        Returns whether the streams were closed.
        """
        if self._closed:
            return not self._open
        self._closed = True
        closing = [stream for stream in self._open.values() if stream.closed]
        streams = [stream for stream in self._open.values() if not stream.closed]
        for stream in streams:
            stream.refuse_appends()
        uploaded = await self._upload_all(upload_timeout_ms)
        closed = False
        if uploaded:
            closed = await self._close_all(streams, closing, upload_timeout_ms)
            self._storage.trim_wal()
        await self._storage.stop()
        await self._reader.close()
        await self._wal.close(unneeded=closed)
        return closed

    async def _upload_all(self, timeout_ms: int | None) -> bool:
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._storage.force_upload()
        except (TimeoutError, StorageFailedError):
            return False
        return True

    async def _close_all(
        self, streams: Sequence[Stream], closing: Sequence[Stream], timeout_ms: int | None
    ) -> bool:
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._close_streams(streams)
                for stream in closing:
                    with suppress(StreamFencedError):  # the caller of that close receives the error
                        await stream.close()
        except TimeoutError:  # no controller is reachable; recovery closes the streams at the same offsets
            return False
        return True

    async def _close_streams(self, streams: Sequence[Stream]) -> None:
        """Close fully uploaded streams; deleted ones need no close."""
        for stream in streams:
            if self._storage.is_deleted(stream.stream_id):
                stream.abandon()
        left = [stream for stream in streams if stream.stream_id in self._open]
        chunks = [
            left[start : start + STREAMS_PER_CALL_MAX] for start in range(0, len(left), STREAMS_PER_CALL_MAX)
        ]
        for at in range(0, len(chunks), CALLS_IN_FLIGHT_MAX):
            await asyncio.gather(*map(self._close_chunk, chunks[at : at + CALLS_IN_FLIGHT_MAX]))

    async def _close_chunk(self, streams: Sequence[Stream]) -> None:
        try:
            await self._streams.close_streams([stream.end() for stream in streams])
        except StreamNotFoundError:  # a stream was just deleted, so the controller closed none of them
            for stream in streams:
                await stream.close()
        for stream in streams:
            stream.abandon()

    def _add(self, state: StreamState) -> None:
        former = self._open.get(state.stream_id)
        if former is not None:
            if former.epoch >= state.epoch:
                raise StreamClosedError(
                    f"stream {state.stream_id} at epoch {state.epoch} is being closed at this node"
                )
            former.abandon()  # the controller opened a newer epoch, so this one is closed
        opened = OpenStream(state)
        self._storage.register(opened)
        self._open[state.stream_id] = Stream(
            opened,
            storage=self._storage,
            streams=self._streams,
            reader=self._reader,
            telemetry=self._runtime.telemetry,
            on_abandoned=self._forget,
        )

    def _forget(self, stream: Stream) -> None:
        if self._open.get(stream.stream_id) is stream:
            del self._open[stream.stream_id]

    def _holds(self, stream_id: StreamId, epoch: StreamEpoch) -> bool:
        stream = self._open.get(stream_id)
        return stream is not None and stream.epoch == epoch and not stream.closed

    def _check_open(self) -> None:
        if self._closed:
            raise StreamClosedError("the stream client was closed")


def _reader(
    runtime: Runtime, store: ObjectStore, objects: ObjectManager, settings: StorageSettings
) -> ObjectStreamReader:
    return ObjectStreamReader(
        store=store,
        objects=objects,
        clock=runtime.clock,
        telemetry=runtime.telemetry,
        block_cache_bytes_max=settings.block_cache_bytes_max,
        index_cache_bytes_max=settings.index_cache_bytes_max,
        read_ahead_blocks_max=settings.read_ahead_blocks_max,
        timeout_ms=settings.fetch_timeout_ms,
    )
