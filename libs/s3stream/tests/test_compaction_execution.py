"""Execution of stream set object compactions: objects before and after, failures, and memory."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_runtime.object_store import ObjectNotFoundError, ObjectStoreUnavailableError
from s3stream.compaction.plan import PlanLimits
from s3stream.compaction.planning import plan_set_objects
from s3stream.compaction.sources import ObjectLocation, read_sources
from s3stream.errors import ObjectCorruptError
from s3stream.objects.reader import READ_TRIES_MAX

from libs.s3stream.tests.compaction_rig import World, states
from libs.s3stream.tests.store_rig import Failure

RECORD_BYTES = 50
"""Size of a record in the rig: header and ten bytes of payload."""


async def three_objects(world: World) -> list[ObjectLocation]:
    """The ranges of the worked example, with one record per offset."""
    return [
        await world.put([(0, 0, 20), (1, 30, 60), (3, 210, 230)]),
        await world.put([(0, 20, 25), (1, 60, 120)]),
        await world.put([(2, 400, 500), (3, 230, 270)]),
    ]


ALL = states({0: 0, 1: 30, 2: 400, 3: 210})
LIMITS = PlanLimits(
    budget_bytes=150 * RECORD_BYTES,
    split_size_bytes=80 * RECORD_BYTES,
    part_size_bytes_min=1,
    part_size_bytes=80 * RECORD_BYTES,
)


async def test_worked_example_with_real_records() -> None:
    world = World()
    sources = await three_objects(world)
    before = await world.records(sources, ALL)
    plan = plan_set_objects(await read_sources(world.store, sources), ALL, LIMITS)
    outputs = await world.run(plan)
    assert await world.records(outputs, ALL) == before
    assert len(outputs) == 4
    assert plan.held_bytes_max <= 150 * RECORD_BYTES
    gets = [call for call in world.store.calls if call[0] == "get"]
    assert len(gets) - sum(len(output.ranges) > 0 for output in plan.outputs) >= 5
    assert world.throttle.reads == [
        read.size_bytes for iteration in plan.iterations for read in iteration.reads
    ]
    assert world.progress[-1] == (plan.read_bytes, plan.read_bytes)
    assert world.prepared[-1].count == 4


async def test_a_truncated_index_response_is_retried() -> None:
    """A short response is not damage: the end of an object is read as many times as its blocks."""
    world = World()
    sources = await three_objects(world)
    whole = await read_sources(world.store, sources)
    broken = iter(range(READ_TRIES_MAX - 1))
    world.store.change = lambda key, data: data[: len(data) // 2] if next(broken, None) is not None else data
    assert [list(each.blocks) for each in await read_sources(world.store, sources)] == [
        list(each.blocks) for each in whole
    ]
    world.store.change = lambda key, data: data[: len(data) // 2]
    with pytest.raises(ObjectCorruptError):
        await read_sources(world.store, sources)


async def test_sources_stay_and_outputs_are_create_only() -> None:
    world = World()
    sources = await three_objects(world)
    plan = plan_set_objects(await read_sources(world.store, sources), ALL, LIMITS)
    kept = {location.key: world.store.objects[location.key] for location in sources}
    await world.run(plan)
    assert {key: world.store.objects[key] for key in kept} == kept


async def test_fully_expired_sources_need_no_call() -> None:
    world = World()
    sources = [await world.put([(0, 0, 20)])]
    plan = plan_set_objects(await read_sources(world.store, sources), states({0: 20}), LIMITS)
    assert await world.run(plan) == []
    assert world.prepared == []


class TestDamage:
    async def test_a_flipped_bit_is_never_copied(self) -> None:
        world = World()
        sources = await three_objects(world)
        plan = plan_set_objects(await read_sources(world.store, sources), ALL, LIMITS)
        damaged = bytearray(world.store.objects[sources[1].key])
        damaged[30] ^= 4
        world.store.objects[sources[1].key] = bytes(damaged)
        with pytest.raises(ObjectCorruptError, match=rf"{sources[1].key}, position 0: block CRC32C"):
            await world.compaction.run(plan)
        assert world.parts.uploads == {}
        assert world.budget.held_bytes == 0

    async def test_a_bit_flipped_in_transit_is_read_again(self) -> None:
        world = World()
        sources = await three_objects(world)
        before = await world.records(sources, ALL)
        plan = plan_set_objects(await read_sources(world.store, sources), ALL, LIMITS)
        broken = READ_TRIES_MAX - 1

        def change(key: str, data: bytes) -> bytes:
            nonlocal broken
            if key == sources[2].key and broken:
                broken -= 1
                return data[:-1] if broken % 2 else bytes([data[0] ^ 1]) + data[1:]
            return data

        world.store.change = change
        outputs = await world.run(plan)
        assert await world.records(outputs, ALL) == before


class TestFailure:
    async def test_a_deleted_source_fails_and_leaves_no_open_upload(self) -> None:
        world = World()
        sources = await three_objects(world)
        plan = plan_set_objects(await read_sources(world.store, sources), ALL, LIMITS)
        del world.store.objects[sources[0].key]
        with pytest.raises(ObjectNotFoundError):
            await world.compaction.run(plan)
        assert world.budget.held_bytes == 0

    async def test_a_failed_part_aborts_all_uploads(self) -> None:
        world = World()
        sources = await three_objects(world)
        plan = plan_set_objects(await read_sources(world.store, sources), ALL, LIMITS)
        world.parts.fail("part", Failure())
        with pytest.raises(ObjectStoreUnavailableError):
            await world.compaction.run(plan)
        assert world.parts.uploads == {}
        assert world.budget.held_bytes == 0

    async def test_a_cancelled_compaction_releases_its_budget(self) -> None:
        world = World()
        sources = await three_objects(world)
        plan = plan_set_objects(await read_sources(world.store, sources), ALL, LIMITS)
        world.store.gate.clear()
        running = asyncio.create_task(world.compaction.run(plan))
        while world.budget.held_bytes == 0:
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert world.budget.held_bytes == 0


async def test_concurrent_compactions_share_one_budget() -> None:
    world = World(budget_bytes=200 * RECORD_BYTES)
    sources = [await three_objects(world), await three_objects(world)]
    plans = [plan_set_objects(await read_sources(world.store, each), ALL, LIMITS) for each in sources]
    held: list[int] = []
    await asyncio.gather(*(watched(world, plan, held) for plan in plans))
    assert max(held) <= 200 * RECORD_BYTES


async def watched(world: World, plan: object, held: list[int]) -> None:
    original = world.prepare

    async def prepare(count: int) -> object:
        held.append(world.budget.held_bytes)
        return await original(count)

    world.compaction._prepare = prepare  # type: ignore[assignment]
    await world.compaction.run(plan)  # type: ignore[arg-type]


@st.composite
def dealt(draw: st.DrawFn) -> tuple[list[list[tuple[int, int, int]]], dict[int, int]]:
    """Ranges of each source, and the start offsets of existing streams."""
    count = draw(st.integers(1, 4))
    sources: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
    starts: dict[int, int] = {}
    for stream in range(draw(st.integers(1, 5))):
        offset = 0
        for source in sources:
            length = draw(st.integers(0, 30))
            if length:
                source.append((stream, offset, offset + length))
            offset += length + draw(st.sampled_from([0, 0, 3]))
        if draw(st.integers(0, 4)):
            starts[stream] = draw(st.integers(0, offset + 1))
    return [source for source in sources if source], starts


@settings(max_examples=60, deadline=None)
@given(
    case=dealt(),
    split_records=st.integers(1, 40),
    part_min=st.integers(1, 400),
    slack=st.integers(0, 2000),
    force_split=st.booleans(),
)
async def test_every_fetch_returns_the_same_before_and_after(
    case: tuple[list[list[tuple[int, int, int]]], dict[int, int]],
    split_records: int,
    part_min: int,
    slack: int,
    force_split: bool,
) -> None:
    ranges, starts = case
    if not ranges:
        return
    streams = states(starts)
    world = World(part_size_bytes_min=part_min)
    sources = [await world.put(each, epoch=number) for number, each in enumerate(ranges)]
    before = await world.records(sources, streams)
    limits = PlanLimits(
        budget_bytes=100 + part_min + slack,
        split_size_bytes=split_records * RECORD_BYTES,
        part_size_bytes_min=part_min,
        part_size_bytes=part_min + 100,
        read_bytes_max=500,
    )
    plan = plan_set_objects(
        await read_sources(world.store, sources), streams, limits, force_split=force_split
    )
    if plan.is_settled:
        return
    outputs = await world.run(plan)
    assert await world.records(outputs, streams) == before
