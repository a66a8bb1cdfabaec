"""Compaction of stream objects: server-side copies, rewritten parts, and unchanged contents."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from s3stream.compaction.copy_plan import CopiedPart, CopyLimits, CopyPlan, RewrittenPart
from s3stream.compaction.copy_planning import plan_stream_objects
from s3stream.compaction.sources import ObjectLocation, read_sources
from s3stream.errors import CompactionLimitError

from libs.s3stream.tests.compaction_rig import World, states

RECORD_BYTES = 50
MINE = states({7: 0})


def limits(part_min: int = 1000, **bounds: int) -> CopyLimits:
    return CopyLimits(
        **{
            "budget_bytes": 10_000,
            "part_size_bytes_min": part_min,
            "part_size_bytes": 2 * part_min,
            "copy_bytes_max": 1 << 30,
            **bounds,
        }
    )


async def objects(world: World, *counts: int) -> list[ObjectLocation]:
    """Create adjacent stream objects with these numbers of records of 50 bytes, in blocks of 100."""
    made: list[ObjectLocation] = []
    offset = 0
    for count in counts:
        made.append(await world.put([(7, offset, offset + count)]))
        offset += count
    return made


async def planned(world: World, sources: list[ObjectLocation], bounds: CopyLimits) -> CopyPlan:
    return plan_stream_objects(await read_sources(world.store, sources), MINE, bounds)


def told(plan: CopyPlan) -> list[list[str]]:
    return [
        [
            f"copy {part.size_bytes} of {part.source}"
            if isinstance(part, CopiedPart)
            else f"rewrite {part.size_bytes}"
            for part in copy.parts
        ]
        for copy in plan.copies
    ]


async def test_large_pieces_are_copied_by_the_store() -> None:
    world = World(part_size_bytes_min=1000)
    sources = await objects(world, 40, 60)
    plan = await planned(world, sources, limits())
    assert told(plan) == [["copy 2000 of 0", "copy 3000 of 1"]]
    reads = len(world.throttle.reads)
    outputs = await world.run(plan)
    assert await world.records(outputs, MINE) == await world.records(sources, MINE)
    assert len(world.throttle.reads) == reads, "this process moved no bytes"
    calls = [call[0] for call in world.parts.calls]
    assert (calls[0], sorted(calls[1:-1]), calls[-1]) == ("create", ["copy", "copy", "part"], "complete")
    assert world.progress[-1] == (5000, 5000)


async def test_a_small_piece_is_rewritten_with_the_beginning_of_the_next_one() -> None:
    world = World(part_size_bytes_min=1000)
    sources = await objects(world, 40, 4, 60)
    plan = await planned(world, sources, limits())
    assert told(plan) == [["copy 2000 of 0", "rewrite 1000", "copy 2200 of 2"]]
    outputs = await world.run(plan)
    assert await world.records(outputs, MINE) == await world.records(sources, MINE)


async def test_a_small_piece_at_the_end_is_the_last_part() -> None:
    world = World(part_size_bytes_min=1000)
    sources = await objects(world, 40, 4)
    plan = await planned(world, sources, limits())
    assert told(plan) == [["copy 2000 of 0", "rewrite 200"]]
    outputs = await world.run(plan)
    assert await world.records(outputs, MINE) == await world.records(sources, MINE)


async def test_small_objects_become_one_put() -> None:
    world = World(part_size_bytes_min=1000)
    sources = await objects(world, 4, 4, 4)
    plan = await planned(world, sources, limits())
    assert told(plan) == [["rewrite 600"]]
    await world.run(plan)
    assert world.parts.calls == []
    assert plan.outputs[0].ranges[0].end_offset == 12


async def test_a_long_copy_is_divided() -> None:
    world = World(part_size_bytes_min=1000)
    sources = await objects(world, 100, 40)
    plan = await planned(world, sources, limits(copy_bytes_max=2000))
    assert told(plan) == [["copy 1666 of 0", "copy 1667 of 0", "copy 1667 of 0", "copy 2000 of 1"]]
    outputs = await world.run(plan)
    assert await world.records(outputs, MINE) == await world.records(sources, MINE)


class TestGroups:
    async def test_the_size_limit_ends_an_output(self) -> None:
        world = World()
        sources = await objects(world, 20, 20, 20, 20)
        plan = await planned(world, sources, limits(object_bytes_max=2 * (1000 + 640) + 48))
        assert [output.ranges[0].end_offset for output in plan.outputs] == [40, 80]
        assert max(output.size_bytes for output in plan.outputs) == 2 * (1000 + 640) + 48

    async def test_a_gap_ends_an_output_and_single_objects_are_copied_too(self) -> None:
        world = World(part_size_bytes_min=1000)
        sources = [
            await world.put([(7, 0, 40)]),
            await world.put([(7, 40, 80)]),
            await world.put([(7, 90, 130)]),
        ]
        plan = await planned(world, sources, limits())
        assert told(plan) == [["copy 2000 of 0", "copy 2000 of 1"], ["copy 2000 of 2"]]
        outputs = await world.run(plan)
        assert await world.records(outputs, MINE) == await world.records(sources, MINE)

    async def test_a_plan_without_gain_does_nothing(self) -> None:
        world = World()
        sources = [await world.put([(7, 0, 40)]), await world.put([(7, 90, 130)])]
        assert (await planned(world, sources, limits())).is_settled

    async def test_expired_data_is_dropped(self) -> None:
        world = World()
        sources = await objects(world, 20, 20)
        plan = plan_stream_objects(await read_sources(world.store, sources), states({7: 31}), limits())
        outputs = await world.run(plan)
        assert [output.ranges[0].start_offset for output in plan.outputs] == [30]
        assert await world.records(outputs, states({7: 31})) == await world.records(sources, states({7: 31}))

    async def test_epochs_may_change_between_objects(self) -> None:
        world = World()
        sources = [await world.put([(7, 0, 20)], epoch=1), await world.put([(7, 20, 40)], epoch=4)]
        plan = await planned(world, sources, limits())
        (output,) = plan.outputs
        assert [(part.epoch, part.start_offset, part.end_offset) for part in output.ranges] == [(4, 0, 40)]
        outputs = await world.run(plan)
        assert await world.records(outputs, MINE) == await world.records(sources, MINE)


async def test_an_exceeded_limit_is_named() -> None:
    world = World()
    sources = await objects(world, 20, 20)
    with pytest.raises(CompactionLimitError, match="20 blocks; a plan takes at most 5"):
        await planned(world, sources, limits(blocks_max=5))
    tight = CopyLimits(budget_bytes=150, part_size_bytes_min=140, part_size_bytes=150)
    with pytest.raises(CompactionLimitError, match=r"100 bytes does not fit.*150 bytes together with 100"):
        await planned(world, await objects(world, 2, 2), tight)


@settings(max_examples=80, deadline=None)
@given(
    pieces=st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0, 0, 0, 5])), min_size=1, max_size=8),
    start=st.integers(0, 120),
    part_min=st.integers(1, 1500),
    slack=st.integers(100, 2000),
    object_bytes_max=st.integers(200, 20_000),
)
async def test_properties_of_any_plan(
    pieces: list[tuple[int, int]], start: int, part_min: int, slack: int, object_bytes_max: int
) -> None:
    world = World(part_size_bytes_min=part_min)
    sources: list[ObjectLocation] = []
    offset = 0
    for count, hole in pieces:
        sources.append(await world.put([(7, offset, offset + count)]))
        offset += count + hole
    alive = states({7: start})
    bounds = CopyLimits(
        budget_bytes=part_min + slack,
        part_size_bytes_min=part_min,
        part_size_bytes=part_min + slack // 2,
        copy_bytes_max=2 * part_min + 500,
        object_bytes_max=object_bytes_max,
        read_bytes_max=300,
    )
    before = await world.records(sources, alive)
    plan = plan_stream_objects(await read_sources(world.store, sources), alive, bounds)
    if plan.is_settled:
        return
    check_parts(plan, bounds)
    outputs = await world.run(plan)
    assert await world.records(outputs, alive) == before
    again = plan_stream_objects(await read_sources(world.store, outputs), alive, bounds)
    assert not outputs or again.is_settled, "it converges"


def check_parts(plan: CopyPlan, bounds: CopyLimits) -> None:
    """Check that every part except the last is legal, the budget holds, and the parts contain the data."""
    assert plan.held_bytes_max <= bounds.budget_bytes
    for copy in plan.copies:
        small = [part for part in copy.parts[:-1] if part.size_bytes < bounds.part_size_bytes_min]
        assert small == []
        assert sum(part.size_bytes for part in copy.parts) == copy.output.data_bytes
        for part in copy.parts:
            if isinstance(part, RewrittenPart):
                assert sum(read.size_bytes for read in part.reads) == part.size_bytes
