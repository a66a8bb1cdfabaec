"""Upload pipeline: sealed blocks are uploaded concurrently and committed in the order in which they
were sealed.

Because of this order, everything before the trim point of the write-ahead log is committed.
`sealing` and `upload_plan` decide what is uploaded; `object_upload` executes one plan.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice

from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.tracing import TraceContext

from s3stream.log_cache import SealedBlocks
from s3stream.object_upload import ObjectUploader
from s3stream.upload_plan import UploadPlan


class Upload:
    """Sealed blocks from the seal to the commit."""

    __slots__ = ("before", "committed", "plan", "sealed", "task", "traces", "trim_sequence")

    def __init__(self, sealed: SealedBlocks, plan: UploadPlan, traces: tuple[TraceContext, ...] = ()) -> None:
        self.sealed = sealed
        self.plan = plan
        self.traces = traces
        self.trim_sequence = 0
        """The trim point that the commit of this upload sent to the controller; 0: none."""
        self.before: Upload | None = None
        self.task: asyncio.Task[None] | None = None
        self.committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class UploadPipeline:
    """Uploads in flight, oldest first. The log cache, which holds their bytes, bounds their number."""

    def __init__(
        self,
        *,
        uploader: ObjectUploader,
        tasks: BackgroundTasks,
        telemetry: Telemetry,
        uploads_in_flight_max: int,
        trim_sequence: Callable[[Upload], int] | None,
        on_committed: Callable[[Upload], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._uploader = uploader
        self._tasks = tasks
        self._telemetry = telemetry
        assert uploads_in_flight_max > 0
        self._in_flight_max = uploads_in_flight_max
        self._trim_sequence = trim_sequence
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._uploads: deque[Upload] = deque()
        telemetry.gauge("ponor_upload_blocks_waiting", lambda: len(self._uploads))

    @property
    def idle(self) -> bool:
        """Whether nothing is being uploaded."""
        return not self._uploads

    @property
    def newest(self) -> Upload | None:
        """The upload submitted last, unless it is committed."""
        return self._uploads[-1] if self._uploads else None

    def first_sequence_without(self, committed: Upload | None) -> int | None:
        """The oldest WAL entry with data in the pipeline, ignoring one upload; None if there is none."""
        sequences = (upload.sealed.first_sequence for upload in self._uploads if upload is not committed)
        return min((sequence for sequence in sequences if sequence is not None), default=None)

    def submit(self, upload: Upload) -> None:
        """Start an upload; its future `committed` resolves after the commit."""
        assert upload.task is None, "an upload was submitted twice"
        assert not upload.committed.done()
        upload.before = self.newest
        self._uploads.append(upload)
        self._start()

    async def stop(self) -> None:
        """Abandon uploads in flight; their data is still in the write-ahead log."""
        tasks = [upload.task for upload in self._uploads if upload.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _start(self) -> None:
        """Start the oldest uploads first. Otherwise a younger upload could hold a place while it waits
        for an older one, which waits for a place.
        """
        for upload in islice(self._uploads, self._in_flight_max):
            if upload.task is None:
                upload.task = self._tasks.spawn(self._run(upload), "upload")

    async def _run(self, upload: Upload) -> None:
        try:
            about = {"ponor.upload.objects": upload.plan.object_count}
            with self._telemetry.continued("ponor.upload", upload.traces, about):
                await self._upload_in_order(upload)
        except BaseException as error:
            upload.committed.cancel()  # fail the waiting callers and all later uploads
            if not isinstance(error, asyncio.CancelledError):
                self._on_failed(error)
            raise
        assert self._uploads[0] is upload
        self._uploads.popleft()
        upload.before = None
        self._on_committed(upload)
        upload.committed.set_result(None)
        self._start()

    async def _upload_in_order(self, upload: Upload) -> None:
        turn = upload.before.committed if upload.before is not None else None
        trim = None if self._trim_sequence is None else partial(self._trim_sequence, upload)
        upload.trim_sequence = await self._uploader.upload(upload.plan, turn=turn, trim_sequence=trim)
        if turn is not None:  # `upload` did not await it if all streams were deleted
            await asyncio.shield(turn)
