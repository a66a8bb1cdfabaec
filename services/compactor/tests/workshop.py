"""Fixture for worker tests: the controller's own ledger, real objects in a memory store, and workers that use
both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_compactor.controller_tasks import ControllerTasks
from ponor_compactor.pace import Pace
from ponor_compactor.progress import Progress
from ponor_compactor.settings import CompactorSettings
from ponor_compactor.task_run import TaskRun
from ponor_compactor.worker import Worker
from ponor_controller.kernel.operation import Caller
from ponor_controller.settings import CompactionSettings, ControllerSettings
from ponor_metadata.image.read_index import find_pieces
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_runtime.budgets import ByteBudget
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from ponor_runtime.telemetry import Telemetry
from s3stream.objects.block import decode_block
from s3stream.objects.keys import object_key
from s3stream.objects.reader import read_index
from s3stream.objects.writer import ObjectWriter
from s3stream.records import StreamRecord

from libs.s3stream.tests.memory_multipart import MemoryMultipartStore
from libs.s3stream.tests.store_rig import InstantClock, MemoryObjectStore, MiddleRandomness
from services.controller.tests.ledger import Ledger

EAGER = CompactionSettings(
    compaction_settle_ms=0, compaction_patience_ms=0, compaction_fan_in=2, compaction_force_split_ms=1 << 40
)
SETTINGS = CompactorSettings(compactor_split_size_bytes=5_000)
STREAMS = 3


@dataclass
class LedgerSession:
    """A session without a network, which applies operations to the ledger directly.

    Attributes:
        commits_twice: send every commit twice under different ids, as if the first answer was lost.
        before_commit: called between the copy and the commit.
    """

    ledger: Ledger
    caller: Caller
    commits_twice: bool = False
    before_commit: Callable[[], None] = lambda: None
    kinds: list[str] = field(default_factory=list)

    async def submit(self, operation: wire.Operation) -> wire.OperationResult:
        kind = operation.WhichOneof("kind")
        assert kind is not None
        self.kinds.append(kind)
        body = getattr(operation, kind)
        if kind == "commit_compaction":
            self.before_commit()
            if self.commits_twice:
                self.ledger.do(self.caller, **{kind: body})
        return self.ledger.do(self.caller, **{kind: body})


class Hand:
    """One worker with its telemetry."""

    def __init__(self, workshop: Workshop, number: int, settings: CompactorSettings) -> None:
        self.clock = clock = InstantClock()
        self.telemetry = Telemetry()
        caller = workshop.ledger.register(number, role=records_pb2.NODE_ROLE_COMPACTOR)
        self.session = LedgerSession(workshop.ledger, caller)
        progress = Progress(clock, self.telemetry)
        self.pace = Pace(clock, settings, self.telemetry)
        run = TaskRun(
            workshop.store,
            workshop.parts,
            settings,
            budget=ByteBudget("compaction", settings.compaction_budget_bytes),
            throttle=self.pace,
            progress=progress,
        )
        self.worker = Worker(
            ControllerTasks(self.session, settings),
            run,
            progress,
            settings,
            pace=self.pace,
            clock=clock,
            randomness=MiddleRandomness(),
            telemetry=self.telemetry,
        )


class Workshop:
    """A broker that uploads objects of the same streams, and their store."""

    def __init__(self) -> None:
        controller = ControllerSettings(compaction=EAGER, destroy_delay_ms=0)
        self.ledger = Ledger(settings=controller)
        self.store = MemoryObjectStore()
        self.parts = MemoryMultipartStore(self.store, part_size_bytes_min=1)
        self.broker = self.ledger.register()
        self.streams = self.ledger.create_streams(self.broker, STREAMS)
        for stream_id in self.streams:
            self.ledger.open(self.broker, stream_id, 0)
        self._end = 0

    def hand(self, number: int = 2_000, settings: CompactorSettings = SETTINGS) -> Hand:
        return Hand(self, number, settings)

    async def upload(self, records: int = 5) -> ObjectId:
        """Upload one stream set object with `records` of every stream; those of the first stream are a
        hundred times as large.
        """
        body = wire.PrepareObjects(count=1, ttl_ms=60_000)
        reserved = self.ledger.do(self.broker, prepare_objects=body).objects_reserved
        object_id = ObjectId(reserved.first_object_id)
        writer = ObjectWriter(object_id, block_bytes_max=100)
        begin, self._end = self._end, self._end + records
        for number, stream_id in enumerate(self.streams):
            for offset in range(begin, self._end):
                payload = f"{stream_id}/{offset}.".encode() * (1 if number else 100)
                writer.add(StreamRecord(StreamId(stream_id), StreamEpoch(0), offset, 1, offset, payload))
        encoded = writer.finish()
        await self.store.put(object_key(reserved.namespace, object_id), encoded.buffers)
        commit = wire.CommitUpload()
        commit.stream_set_object.object_id = object_id
        commit.stream_set_object.size_bytes = encoded.size_bytes
        for stream_id in self.streams:
            commit.stream_set_object.ranges.add(
                stream_id=stream_id, stream_epoch=0, start_offset=begin, end_offset=self._end
            )
        self.ledger.do(self.broker, commit_upload=commit)
        self.ledger.now_ms += 10
        return object_id

    def trim(self, stream_id: int, start_offset: int) -> None:
        body = wire.TrimStreams()
        body.streams.add(stream_id=stream_id, stream_epoch=0, start_offset=start_offset)
        self.ledger.do(self.broker, trim_streams=body)

    def delete(self, *stream_ids: int) -> None:
        self.ledger.do(self.broker, delete_streams=wire.DeleteStreams(stream_ids=stream_ids))

    def key(self, object_id: int) -> str:
        return object_key(self.ledger.object(object_id).namespace, ObjectId(object_id))

    def committed(self) -> list[ObjectId]:
        rows = self.ledger.image[OBJECTS]
        return [row.object_id for row in rows if row.state is ObjectState.COMMITTED]

    async def fetch(self, stream_id: int, offset: int) -> list[bytes]:
        """Return the payloads from this offset to the end, as a reader finds them by the read index."""
        payloads: list[bytes] = []
        found = find_pieces(self.ledger.image, StreamId(stream_id), offset, self._end, limit=10_000)
        for piece in found:
            key = object_key(piece.namespace, piece.object_id)
            for entry in await read_index(self.store, key, piece.size_bytes):
                if entry.stream_id != stream_id or entry.end_offset <= piece.start_offset:
                    continue
                if entry.start_offset >= piece.end_offset:
                    continue
                data = self.store.objects[key][entry.position :][: entry.size_bytes]
                for record in decode_block(key, entry, data).records_from(piece.start_offset):
                    if record.base_offset < piece.end_offset:
                        payloads.append(bytes(record.payload))
        return payloads

    async def everything(self) -> list[list[bytes]]:
        """Fetch every stream from every third offset."""
        ends = [self.ledger.stream(stream_id) for stream_id in self.streams]
        return [
            await self.fetch(row.stream_id, offset)
            for row in ends
            for offset in range(row.start_offset, row.end_offset, 3)
        ]


@contextmanager
def paused(store: MemoryObjectStore) -> Iterator[None]:
    """Block all calls of the store in this context."""
    store.gate.clear()
    try:
        yield
    finally:
        store.gate.set()


def pieces_of(workshop: Workshop) -> Sequence[int]:
    """Return the number of pieces of every stream."""
    image = workshop.ledger.image
    return [
        len(find_pieces(image, StreamId(stream_id), 0, 1 << 40, limit=10_000))
        for stream_id in workshop.streams
    ]
