"""Test of forced splits of the widest set object that compaction creates, at full size."""

from __future__ import annotations

from dataclasses import replace

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_compactor.controller_tasks import ControllerTasks, require_fit
from ponor_compactor.leased_task import LeasedTask
from ponor_compactor.settings import CompactorSettings
from ponor_controller.settings import CompactionSettings, ControllerSettings
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.compactions import CompactionKind
from ponor_metadata.nouns.objects import STREAM_SET_OBJECTS
from ponor_metadata.nouns.streams import STREAM_OBJECTS, STREAMS
from ponor_runtime.identity import ObjectId, StreamEpoch, StreamId
from s3stream.compaction.executor import CompactedObjects
from s3stream.compaction.plan import CompactionPlan, OutputKind, PlanLimits
from s3stream.compaction.planning import plan_set_objects
from s3stream.compaction.sources import SourceIndex
from s3stream.objects.format import BlockEntry
from s3stream.ports import UploadedObject

from services.compactor.tests.workshop import LedgerSession
from services.controller.tests.compacting import COMPACTOR
from services.controller.tests.ledger import Ledger, UploadRange

DEFAULTS = CompactionSettings()
AT_ONCE = 500
"""Streams in one operation."""
END = 1 << 40
BLOCK_BYTES = 3_000


def joined_object(ledger: Ledger, streams: int) -> None:
    """Create one set object with that many streams, as compaction does; uploads of brokers are narrower."""
    broker = ledger.register()
    ids: list[int] = []
    while len(ids) < streams:
        ids.extend(ledger.create_streams(broker, AT_ONCE))
    for at in range(0, streams, AT_ONCE):
        opened = [wire.OpenStream(stream_id=each, stream_epoch=1) for each in ids[at : at + AT_ONCE]]
        ledger.do(broker, open_streams=wire.OpenStreams(streams=opened))
    pieces: list[UploadRange] = [(each, 1, 0, END) for each in ids]
    ledger.upload(broker, pieces)


def index_of(ledger: Ledger, task: LeasedTask) -> SourceIndex:
    """Return the index of the only source, with one block per piece."""
    (location,) = task.sources
    pieces = ledger.set_object(location.object_id).ranges.decoded
    blocks = [
        BlockEntry(
            each.stream_id,
            StreamEpoch(1),
            each.start_offset,
            each.end_offset,
            -1,
            number * BLOCK_BYTES,
            BLOCK_BYTES,
            1,
            0,
        )
        for number, each in enumerate(pieces)
    ]
    return SourceIndex(location, blocks)


async def commit(tasks: ControllerTasks, task: LeasedTask, plan: CompactionPlan) -> int:
    """Commit as a worker does, without copying bytes; return the result."""
    prepared = await tasks.prepare(len(plan.outputs))
    made = [
        (each.kind, UploadedObject(ObjectId(prepared.first_object_id + number), each.size_bytes, each.ranges))
        for number, each in enumerate(plan.outputs)
    ]
    shared = [each for kind, each in made if kind is OutputKind.STREAM_SET_OBJECT]
    own = tuple(each for kind, each in made if kind is OutputKind.STREAM_OBJECT)
    outcome = await tasks.commit(task, CompactedObjects(shared[0] if shared else None, own))
    return outcome.result


async def test_widest_object_is_split_in_seven_commits_that_fit() -> None:
    streams = DEFAULTS.compaction_streams_max
    ledger = Ledger(settings=ControllerSettings(compaction=replace(DEFAULTS, compaction_settle_ms=0)))
    joined_object(ledger, streams)
    session = LedgerSession(ledger, ledger.register(2_000, role=COMPACTOR))
    tasks = ControllerTasks(session, CompactorSettings())
    left: list[int] = []
    while list(ledger.image[STREAM_SET_OBJECTS]):
        ledger.now_ms += DEFAULTS.compaction_force_split_ms
        task = await tasks.lease()
        assert task is not None
        assert task.kind is CompactionKind.FORCE_SPLIT
        plan = plan_set_objects(
            [index_of(ledger, task)], task.streams, PlanLimits(64 << 20), force_split=True
        )
        require_fit(task, plan.outputs)
        assert await commit(tasks, task, plan) == wire.CompactionOutcome.RESULT_DONE
        left.append(sum(len(each.ranges.decoded) for each in ledger.image[STREAM_SET_OBJECTS]))
    assert left == [1_251, 1_002, 753, 504, 255, 6, 0]
    assert len(list(ledger.image[STREAM_OBJECTS])) == streams
    assert {each.stream_id for each in ledger.image[STREAM_OBJECTS]} == {
        StreamId(each.stream_id) for each in ledger.image[STREAMS]
    }
    validate(ledger.image)
