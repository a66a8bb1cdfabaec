"""Tests of task execution, and of plans that are refused before the copy."""

from __future__ import annotations

import pytest
from ponor_compactor.controller_tasks import require_fit
from ponor_compactor.leased_task import LeasedTask
from ponor_compactor.progress import Progress
from ponor_compactor.settings import CompactorSettings
from ponor_compactor.task_run import TaskRun
from ponor_metadata.nouns.compactions import CompactionKind
from ponor_runtime.identity import StreamEpoch, StreamId
from ponor_runtime.telemetry import Telemetry
from s3stream.compaction.plan import OutputKind, PlannedOutput
from s3stream.compaction.sources import ObjectLocation
from s3stream.errors import CompactionLimitError
from s3stream.ports import StreamRange

from libs.s3stream.tests.compaction_rig import World, states
from libs.s3stream.tests.store_rig import InstantClock


def _task(kind: CompactionKind, sources: list[ObjectLocation], streams: dict[int, int]) -> LeasedTask:
    return LeasedTask(1, 1, kind, tuple(sources), states(streams), 5)


def _run(world: World) -> TaskRun:
    return TaskRun(
        world.store,
        world.parts,
        CompactorSettings(compactor_split_size_bytes=1 << 20),
        budget=world.budget,
        throttle=world.throttle,
        progress=Progress(InstantClock(), Telemetry()),
    )


async def test_stream_objects_are_joined_by_copies_within_the_store() -> None:
    world = World()
    sources = [await world.put([(3, at, at + 10)]) for at in range(0, 40, 10)]
    made = await _run(world).run(_task(CompactionKind.STREAM_OBJECTS, sources, {3: 0}), world.prepare)
    assert made is not None
    assert made.stream_set_object is None
    (joined,) = made.stream_objects
    assert [(each.start_offset, each.end_offset) for each in joined.ranges] == [(0, 40)]
    expected = await world.records(sources, states({3: 0}))
    location = ObjectLocation(joined.object_id, sources[0].namespace, 0, joined.size_bytes)
    assert await world.records([location], states({3: 0})) == expected
    assert len(world.throttle.reads) == len(sources), "only the indexes are read"


async def test_forced_split_leaves_no_shared_object() -> None:
    world = World()
    sources = [await world.put([(1, 0, 5), (2, 0, 5)]), await world.put([(1, 5, 9), (2, 5, 9)])]
    streams = {1: 0, 2: 0}
    made = await _run(world).run(_task(CompactionKind.FORCE_SPLIT, sources, streams), world.prepare)
    assert made is not None
    assert made.stream_set_object is None
    assert len(made.stream_objects) == 2


async def test_sources_that_cannot_improve_are_not_rewritten() -> None:
    world = World()
    sources = [await world.put([(1, 0, 5), (2, 0, 5)])]
    task = _task(CompactionKind.SET_OBJECTS, sources, {1: 0, 2: 0})
    assert await _run(world).run(task, world.prepare) is None
    assert world.prepared == []


async def test_task_with_only_trimmed_data_commits_no_output() -> None:
    world = World()
    sources = [await world.put([(1, 0, 5)]), await world.put([(1, 5, 9)])]
    made = await _run(world).run(_task(CompactionKind.SET_OBJECTS, sources, {1: 9}), world.prepare)
    assert made is not None
    assert (made.stream_set_object, made.stream_objects) == (None, ())
    assert world.prepared == []


def test_too_large_commit_is_refused_before_the_copy() -> None:
    def output(streams: int) -> PlannedOutput:
        ranges = tuple(
            StreamRange(StreamId(1_000_000 + number), StreamEpoch(7), 1 << 40, 1 << 41)
            for number in range(streams)
        )
        return PlannedOutput(OutputKind.STREAM_SET_OBJECT, b"", 1, ranges, 1)

    task = _task(CompactionKind.SET_OBJECTS, [], {})
    require_fit(task, [output(2_000)])
    with pytest.raises(CompactionLimitError, match="2001 ranges; the limit is 2000"):
        require_fit(task, [output(2_001)])
