"""A worker, the controller's ledger and a generating store in one process: gigabytes are compacted
until nothing is left, and memory is measured.

It runs in a separate process, so that memory of other tests does not count.
`test_compaction_at_scale.py` checks the results.
"""

from __future__ import annotations

import asyncio
import resource
import time
from dataclasses import dataclass
from typing import Final

import psutil
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_compactor.controller_tasks import ControllerTasks
from ponor_compactor.pace import Pace
from ponor_compactor.progress import Progress
from ponor_compactor.settings import CompactorSettings
from ponor_compactor.task_run import TaskRun
from ponor_compactor.worker import Outcome, Worker
from ponor_controller.kernel.operation import Caller
from ponor_metadata.image.read_index import find_pieces
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_runtime.budgets import ByteBudget
from ponor_runtime.freed_memory import use_freed_memory_again
from ponor_runtime.identity import ObjectId, StreamId
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry
from s3stream.objects.keys import object_key

from services.controller.tests.ledger import Ledger
from tests.acceptance.generating_store import GeneratingStore

GB: Final = 1_000_000_000
MIB: Final = 1 << 20
STREAM_BYTES: Final = 200_000_000
UPLOAD_BYTES: Final = 64_000_000
BLOCK_BYTES: Final = 512 * 1024
OFFSET_BYTES: Final = 1_024
IDLE_LOOK_MS: Final = 300_000
IDLE_LOOKS: Final = 60
"""Five hours of cluster time without a task: longer than any patience of the controller."""
TASKS_MAX_PER_GB: Final = 200


@dataclass(frozen=True, slots=True)
class GeneratedFigures:
    """Results."""

    data_bytes: int
    streams: int
    tasks: int
    written_bytes: int
    copied_bytes: int
    calls: dict[str, int]
    start_rss_bytes: int
    peak_rss_bytes: int
    cpu_s: float
    pieces_per_stream_max: int
    metadata_bytes: int
    objects: int


class GeneratedWorld:
    """A broker that uploaded everything long ago, and one worker."""

    def __init__(self, total_bytes: int, budget_bytes: int) -> None:
        self.ledger = Ledger()
        self.store = GeneratingStore()
        self._broker = self.ledger.register()
        self._collector = self.ledger.register(1_000, role=records_pb2.NODE_ROLE_GC)
        count = max(1, total_bytes // STREAM_BYTES)
        self.streams = self.ledger.create_streams(self._broker, count)
        for stream_id in self.streams:
            self.ledger.open(self._broker, stream_id, 0)
        self._end = 0
        self.data_bytes = 0
        self.tasks = 0
        settings = CompactorSettings(
            compaction_budget_bytes=budget_bytes,
            compactor_bytes_per_s_min=1 << 40,
            compactor_read_bytes_per_s_max=1 << 40,
            compactor_write_bytes_per_s_max=1 << 40,
            compactor_requests_per_s_max=1_000_000,
            compactor_poll_interval_ms_min=10,
            compactor_poll_interval_ms_max=10,
        )
        self._worker = self._hire(settings)

    def upload(self) -> None:
        """Create one stream set object with the same amount of every stream, as a broker does."""
        (object_id,) = self.ledger.prepare(self._broker)
        offsets = UPLOAD_BYTES // len(self.streams) // OFFSET_BYTES
        begin, end = self._end, self._end + offsets
        step = BLOCK_BYTES // OFFSET_BYTES
        blocks = [
            (stream_id, at, min(at + step, end), (min(at + step, end) - at) * OFFSET_BYTES)
            for stream_id in self.streams
            for at in range(begin, end, step)
        ]
        key = object_key(self.ledger.object(object_id).namespace, ObjectId(object_id))
        body = wire.CommitUpload()
        body.stream_set_object.object_id = object_id
        body.stream_set_object.size_bytes = self.store.make(key, blocks)
        for stream_id in self.streams:
            body.stream_set_object.ranges.add(
                stream_id=stream_id, stream_epoch=0, start_offset=begin, end_offset=end
            )
        self.ledger.do(self._broker, commit_upload=body)
        self.ledger.now_ms += 1_000
        self._end = end
        self.data_bytes += offsets * OFFSET_BYTES * len(self.streams)

    async def converge(self) -> None:
        """Work until five hours pass without a task."""
        idle = 0
        while idle < IDLE_LOOKS:
            outcome = await self._worker.once()
            assert outcome in {Outcome.DONE, Outcome.NOTHING, Outcome.SETTLED}, outcome
            if outcome is Outcome.NOTHING:
                idle += 1
                self.ledger.now_ms += IDLE_LOOK_MS
                while not self.ledger.survey.step():
                    pass
            else:
                idle = 0
                self.tasks += 1
                assert self.tasks <= 100 + TASKS_MAX_PER_GB * self.data_bytes / GB, "compaction does not end"
            await self._collect()

    def require_everything(self) -> int:
        """Check that every offset of every stream is in exactly one object, and that the store has
        exactly these objects; return the most pieces of a stream.
        """
        image = self.ledger.image
        named = {object_key(row.namespace, row.object_id) for row in image[OBJECTS]}
        assert named == self.store.keys, "the bucket contains exactly the live objects"
        assert all(row.state is ObjectState.COMMITTED for row in image[OBJECTS])
        assert self.store.open_uploads == 0
        most = 0
        for stream_id in self.streams:
            pieces = find_pieces(image, StreamId(stream_id), 0, self._end, limit=1_000_000)
            at = 0
            for piece in pieces:
                assert piece.start_offset == at, f"stream {stream_id}: nothing at offset {at}"
                at = piece.end_offset
            assert at == self._end, f"stream {stream_id} ends at {at}"
            most = max(most, len(pieces))
        return most

    async def _collect(self) -> None:
        """Collect garbage as a collector does: claim, delete, confirm."""
        self.ledger.now_ms += self.ledger.settings.destroy_delay_ms
        claim = wire.ClaimObjects(limit=500, ttl_ms=60_000)
        granted = self.ledger.do(self._collector, claim_objects=claim).objects_granted.objects
        if granted:
            ids = [each.object_id for each in granted]
            await self.store.delete([self._key(object_id) for object_id in ids])
            self.ledger.do(self._collector, confirm_deleted=wire.ConfirmDeleted(object_ids=ids))

    def _key(self, object_id: int) -> str:
        return object_key(self.ledger.object(object_id).namespace, ObjectId(object_id))

    def _hire(self, settings: CompactorSettings) -> Worker:
        clock, telemetry = SystemClock(), Telemetry()
        caller = self.ledger.register(2_000, role=records_pb2.NODE_ROLE_COMPACTOR)
        progress = Progress(clock, telemetry)
        pace = Pace(clock, settings, telemetry)
        run = TaskRun(
            self.store,
            self.store,
            settings,
            budget=ByteBudget("compaction", settings.compaction_budget_bytes),
            throttle=pace,
            progress=progress,
        )
        return Worker(
            ControllerTasks(_LedgerSession(self.ledger, caller), settings),
            run,
            progress,
            settings,
            pace=pace,
            clock=clock,
            randomness=SystemRandomness(),
            telemetry=telemetry,
        )


class _LedgerSession:
    """Submit operations directly to the ledger."""

    def __init__(self, ledger: Ledger, caller: Caller) -> None:
        self._ledger = ledger
        self._caller = caller

    async def submit(self, operation: wire.Operation) -> wire.OperationResult:
        kind = operation.WhichOneof("kind")
        assert kind is not None
        return self._ledger.do(self._caller, **{kind: getattr(operation, kind)})


def compact_generated(total_bytes: int, budget_bytes: int) -> GeneratedFigures:
    """Upload, compact until nothing is left, check."""
    use_freed_memory_again()
    world = GeneratedWorld(total_bytes, budget_bytes)
    while world.data_bytes < total_bytes:
        world.upload()
    start_rss_bytes = psutil.Process().memory_info().rss
    cpu_s = time.process_time()
    asyncio.run(world.converge())
    cpu_s = time.process_time() - cpu_s
    most = world.require_everything()
    survey = world.ledger.survey
    return GeneratedFigures(
        world.data_bytes,
        len(world.streams),
        world.tasks,
        world.store.proven_bytes,
        world.store.copied_bytes,
        dict(world.store.calls),
        start_rss_bytes,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        cpu_s,
        most,
        survey.findings.metadata_bytes,
        len(world.ledger.image[OBJECTS]),
    )
