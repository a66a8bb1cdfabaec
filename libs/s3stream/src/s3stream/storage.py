"""Storage of one node: the path of all streams' appends from memory to objects.

    append → admission → group commit → write-ahead log → (durable) → log cache → acknowledged
    log cache → sealing → upload pipeline → committed → log trimmed, memory evictable

One supervised task, `_watch`, handles events that no append triggers: age, force, failure. It
sleeps while nothing waits for an upload.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from ponor_runtime.disk import Buffer
from ponor_runtime.identity import StreamId
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks, Wake

from s3stream.admission import Admission
from s3stream.errors import StorageFailedError
from s3stream.group_commit import AppendTraces, GroupCommit, OnDurable, PendingAppend
from s3stream.log_cache import LogCache
from s3stream.object_upload import ObjectUploader
from s3stream.open_stream import OpenStream
from s3stream.ports import StreamManager
from s3stream.records import RECORD_HEADER_BYTES, StreamRecord, unpinned
from s3stream.sealing import SealReason, SealTriggers, UploadHooks, plan_sealed
from s3stream.settings import StorageSettings
from s3stream.upload import Upload, UploadPipeline
from s3stream.wal import WriteAheadLog

_WAITING_POLL_S = 0.05
"""Poll interval while appends wait for room in the log, because a trim does not report its end."""


class Storage:
    """All steps between `Stream.append` and the object store, for all streams of this node."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        wal: WriteAheadLog,
        uploader: ObjectUploader,
        streams: StreamManager,
        settings: StorageSettings,
        tasks: BackgroundTasks,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = runtime.clock
        self._telemetry = runtime.telemetry
        self._traces = AppendTraces(runtime.clock)
        self._wal = wal
        self._streams = streams
        self._settings = settings
        self._tasks = tasks
        self._open: dict[StreamId, OpenStream] = {}
        self._cache = LogCache(bytes_max=settings.log_cache_bytes_max)
        self._commit = GroupCommit(wal, self, runtime.clock, entry_bytes_max=settings.wal_entry_bytes_max)
        self._admission = Admission(
            cache=self._cache, commit=self._commit, settings=settings, record_bytes_max=wal.record_bytes_max
        )
        self._triggers = SealTriggers(cache=self._cache, wal=wal, clock=runtime.clock, settings=settings)
        self._hooks = UploadHooks()
        self._pipeline = UploadPipeline(
            uploader=uploader,
            tasks=tasks,
            telemetry=runtime.telemetry,
            uploads_in_flight_max=settings.uploads_in_flight_max,
            trim_sequence=self._sequence_needed_after if wal.trim_is_recorded else None,
            on_committed=self._on_committed,
            on_failed=self._on_upload_failed,
        )
        self._wake = Wake(runtime.clock)
        self._sealing = False
        self._forced: list[asyncio.Future[None]] = []
        self._force_due_ns = 0
        self._next_sequence = wal.next_sequence
        self._failure: StorageFailedError | None = None
        self._watching: asyncio.Task[None] | None = None
        self._append_us = runtime.telemetry.histogram("ponor_wal_append_seconds")
        runtime.telemetry.gauge("ponor_log_cache_bytes", lambda: self._cache.charged_bytes)

    # --- streams

    def start(self) -> None:
        """Start the watching task."""
        self._wal.when_full(self._wake.set)
        self._watching = self._tasks.spawn(self._watch(), "storage")

    def register(self, stream: OpenStream) -> None:
        """Register an open stream."""
        assert stream.stream_id not in self._open
        assert stream.next_offset == stream.committed_offset, "the stream is not opened at its committed end"
        self._open[stream.stream_id] = stream

    def unregister(self, stream: OpenStream) -> None:
        """Remove a closed stream. Its cached data is evicted later."""
        self._hooks.forget(stream)
        if self._open.get(stream.stream_id) is stream:
            del self._open[stream.stream_id]

    def is_deleted(self, stream_id: StreamId) -> bool:
        """Whether the stream was deleted. Its remaining data is then dropped, and its committed
        offset does not change.
        """
        stream = self._open.get(stream_id)
        if self._streams.exists(stream_id):
            if stream is not None:
                stream.seen_in_image = True
            return False
        # An image that has never contained the stream lags; the controller ignores ranges of deleted streams.
        return stream is None or stream.seen_in_image

    def set_upload_hook(self, stream: OpenStream, hook: Callable[[], bool]) -> None:
        """Call `hook` before a block with the stream's own data is sealed."""
        stream.upload_hook = hook
        if stream.next_offset > stream.committed_offset:
            self._hooks.note_append(stream)

    @property
    def hooks_running(self) -> bool:
        """Whether an upload hook is running."""
        return self._hooks.running

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload of an append."""
        return self._admission.record_bytes_max - RECORD_HEADER_BYTES

    # --- the append path

    def append(
        self,
        stream: OpenStream,
        payload: Buffer,
        count: int,
        max_timestamp: int,
        min_timestamp: int,
        on_durable: OnDurable,
    ) -> None:
        """Append a record at the stream's next offset; see `Stream.append_nowait`."""
        if self._failure is not None:
            raise StorageFailedError(str(self._failure)) from self._failure
        size_bytes = RECORD_HEADER_BYTES + len(payload)
        request = self._telemetry.request
        if request is not None:
            on_durable = self._traces.follow(request, stream.stream_id, size_bytes, on_durable)
        if self._hooks.running:
            self._admission.charge_unconditionally(size_bytes)
            self._hooks.note_bytes(size_bytes)
            admitted = True
        else:
            admitted = self._admission.charge(size_bytes)
        base_offset = stream.next_offset
        record = StreamRecord(
            stream.stream_id,
            stream.epoch,
            base_offset,
            count,
            max_timestamp,
            payload if type(payload) is bytes else unpinned(payload),
            min_timestamp,
        )
        if admitted:
            self._commit.add(stream, record, size_bytes, on_durable)
        else:
            self._admission.wait((stream, record, size_bytes, on_durable))
            self._wake.set()
        stream.next_offset = base_offset + count
        if stream.upload_hook is not None and not stream.awaits_hook:
            self._hooks.note_append(stream)

    def on_durable(self, appends: list[PendingAppend], sequence: int, started_ns: int) -> None:
        """Handle durable records: first cache, then acknowledge them."""
        cache = self._cache
        was_empty = not cache.active.runs
        cache.now_ns = now_ns = self._clock.monotonic_ns()
        for stream, record, size_bytes, _ in appends:
            cache.put(stream.chain, record, size_bytes, sequence)
            stream.confirmed_offset = record.base_offset + record.count
        assert sequence + 1 >= self._next_sequence, "an entry became durable out of order"
        self._next_sequence = sequence + 1
        for _, _, _, on_durable in appends:  # a callback may append again, so the offsets are updated first
            try:
                on_durable(None)
            except Exception as error:  # noqa: BLE001 - reported
                self._report(error)
        self._append_us.record((now_ns - started_ns) // 1000)
        if self._admission.waiting:
            self._admit_waiting()
        if was_empty or self._triggers.size_reached() or (self._pipeline.idle and self._triggers.pressure()):
            self._wake.set()

    def on_wal_failed(self, appends: list[PendingAppend], error: BaseException) -> None:
        """Fail pending appends and stop the node, because nothing more can be acknowledged."""
        self._fail(StorageFailedError(f"the write-ahead log failed: {error}"))
        for _, _, _, on_durable in appends:
            self._tell(on_durable, self._failure)

    def _tell(self, on_durable: OnDurable, failure: StorageFailedError | None) -> None:
        """Run one callback. An exception in it must not prevent the next callback."""
        try:
            on_durable(None if failure is None else StorageFailedError(str(failure)))
        except Exception as error:  # noqa: BLE001 - reported
            self._report(error)

    def _report(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": "completion callback of an append raised", "exception": error}
        )

    def _admit_waiting(self, *, unconditionally: bool = False) -> None:
        while (append := self._admission.next_admitted(unconditionally=unconditionally)) is not None:
            self._commit.add(*append)

    # --- uploads

    async def force_upload(self, *, at_once: bool = False) -> None:
        """Return when everything appended before this call is committed. Calls within a short time
        share one upload.

        With `at_once`, do not wait for other calls to join.

        Raises:
            StorageFailedError: the write-ahead log failed.
        """
        if self._failure is not None:
            raise StorageFailedError(str(self._failure)) from self._failure
        if at_once:
            self._force_due_ns = self._clock.monotonic_ns()
        elif not self._forced:
            self._force_due_ns = self._clock.monotonic_ns() + self._settings.force_linger_ms * 1_000_000
        done: asyncio.Future[None] = self._loop.create_future()
        self._forced.append(done)
        self._wake.set()
        await done

    async def stop(self) -> None:
        """Stop watching and uploading, and refuse appends. Uncommitted data stays in the write-ahead log."""
        self._fail(StorageFailedError("the storage was stopped"))
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self._pipeline.stop()

    def trim_wal(self, *, recorded_sequence: int = 0) -> None:
        """Trim committed data from the log. If the controller must record the trim point first, trim only up
        to `recorded_sequence`.
        """
        self._wal.trim(self._sequence_needed_after(None), recorded_sequence=recorded_sequence)

    def _sequence_needed_after(self, upload: Upload | None) -> int:
        """Return the lowest log entry that has uncommitted data after the commit of `upload`, which must be
        the oldest upload; with None, the lowest entry that has uncommitted data now.
        """
        sequences = [self._pipeline.first_sequence_without(upload)]
        sequences.extend(
            block.first_sequence
            for block in (self._cache.carried, self._cache.active)
            if block is not None and block.runs
        )
        return min((sequence for sequence in sequences if sequence is not None), default=self._next_sequence)

    async def _watch(self) -> None:
        while True:
            await self._wake.wait(self._idle_s())
            if self._failure is not None:
                raise self._failure
            if self._admission.waiting:
                self._admit_waiting()
            if self._wal.waits_for_space and self._pipeline.idle:
                # Appends to the log wait for segments that only an upload can free. Therefore only durable
                # data is uploaded, and no hooks run. The hooks' records follow in the next block; until then,
                # a recovery must read more.
                self._submit(SealReason.PRESSURE)
            reason = self._due()
            if reason is not None:
                await self._begin_seal(reason)

    def _idle_s(self) -> float | None:
        """Return how long to sleep unless woken; None for no limit."""
        waits: list[float] = []
        if self._admission.waiting:
            waits.append(_WAITING_POLL_S)
        if not self._sealing:
            if self._forced:
                waits.append(max(self._force_due_ns - self._clock.monotonic_ns(), 0) / 1e9)
            if (ages_s := self._triggers.next_due_s()) is not None:
                waits.append(ages_s)
        return min(waits, default=None)

    def _due(self) -> SealReason | None:
        if self._sealing:
            return None
        if self._forced and self._clock.monotonic_ns() >= self._force_due_ns:
            return SealReason.FORCE
        return self._triggers.due(pipeline_idle=self._pipeline.idle)

    async def _begin_seal(self, reason: SealReason) -> None:
        self._sealing = True
        await self._run_hooks()
        if self._failure is not None:
            return
        forced: list[asyncio.Future[None]] = []
        if reason is SealReason.FORCE:
            forced, self._forced = self._forced, []
        self._commit.cut(partial(self._seal, reason, forced))

    async def _run_hooks(self) -> None:
        """Run the waiting hooks, over several turns if needed. A hook runs again if its stream received
        data in the meantime.
        """
        left = 2 * len(self._hooks)
        while True:
            # Data that a hook describes may still wait for admission; it must precede the hook's
            # record in the log.
            self._admit_waiting(unconditionally=True)
            left -= self._hooks.run_some()
            if not self._hooks or left <= 0 or self._failure is not None:
                return
            await self._clock.sleep(0)

    def _seal(self, reason: SealReason, forced: list[asyncio.Future[None]]) -> None:
        self._sealing = False
        if self._failure is not None:  # the cut was reached after a failure: nothing is uploaded anymore
            for done in forced:
                self._fail_future(done)
            return
        self._submit(reason)
        newest = self._pipeline.newest
        for done in forced:
            if newest is None:
                self._resolve(done)
            else:
                newest.committed.add_done_callback(partial(self._on_forced, done))
        self._wake.set()

    def _submit(self, reason: SealReason) -> None:
        cache = self._cache
        sealed = cache.seal()
        self._triggers.note_sealed()
        if sealed.first_sequence is None:
            return
        plan = plan_sealed(
            sealed,
            is_deleted=self.is_deleted,
            may_carry=self._triggers.may_carry(reason),
            expired_before_ns=self._clock.monotonic_ns() - self._settings.upload_interval_ms * 1_000_000,
            settings=self._settings,
        )
        cache.carry(sealed, [piece.stream_id for piece in plan.carried])
        traces = self._traces.take() if plan.object_count else ()
        self._pipeline.submit(Upload(sealed, plan, traces))

    def _on_committed(self, upload: Upload) -> None:
        for piece in upload.plan.pieces:
            stream = self._open.get(piece.stream_id)
            if stream is not None and stream.epoch == piece.epoch:
                stream.committed_offset = piece.end_offset
        self._cache.free(upload.sealed)
        self.trim_wal(recorded_sequence=upload.trim_sequence)
        if self._admission.waiting:
            self._admit_waiting()
        self._wake.set()

    # --- failure

    def _fail(self, failure: StorageFailedError) -> None:
        if self._failure is None:
            self._failure = failure
            for done in self._forced:
                self._fail_future(done)
            # Runs after the pending appends fail, so that every stream's callbacks run in append order.
            self._loop.call_soon(self._fail_waiting)
            self._wake.set()

    def _fail_waiting(self) -> None:
        for _, _, _, on_durable in self._admission.abandon():
            self._tell(on_durable, self._failure)

    def _fail_future(self, future: asyncio.Future[None]) -> None:
        assert self._failure is not None
        if not future.done():
            future.set_exception(StorageFailedError(str(self._failure)))

    def _on_upload_failed(self, error: BaseException) -> None:
        self._fail(StorageFailedError(f"an upload failed permanently: {error}"))

    def _on_forced(self, done: asyncio.Future[None], committed: asyncio.Future[None]) -> None:
        if not committed.cancelled() and committed.exception() is None:
            self._resolve(done)
        else:
            self._fail(StorageFailedError("the storage was stopped"))
            self._fail_future(done)

    @staticmethod
    def _resolve(done: asyncio.Future[None]) -> None:
        if not done.done():
            done.set_result(None)
