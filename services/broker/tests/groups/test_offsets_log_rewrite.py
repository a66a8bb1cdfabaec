"""Rewrites of the log of a partition of `__consumer_offsets` keep its content under concurrent changes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.coordination.log_rewrite import BATCH_ENTRIES_MAX
from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode
from ponor_kafka.record_builder import build_batch
from ponor_runtime.turns import at_once
from s3stream.errors import AppendBackpressureError, StreamClosedError

NO_MEMBER = MemberClaim("")
SETTINGS = GroupSettings(
    offsets_topic_partitions=1, offsets_rewrite_log_bytes_min=1 << 14, coordinator_batch_bytes_max=1 << 14
)


@pytest.fixture
async def small_world(world_type: Any) -> Any:
    world = world_type(SETTINGS)
    world.topics["__consumer_offsets"] = (UUID(int=99), 1)
    await world.start()
    yield world
    await world.coordinator.close()
    assert world.failures == []


def log_bytes(world: Any) -> int:
    return sum(map(len, world.logs[0]))


async def commit(
    world: Any, offset: int, *, group: str = "g", partition: int = 0, note: str = ""
) -> ErrorCode:
    commits = {("t", partition): CommittedOffset(offset, metadata=note)}
    code: ErrorCode = await world.coordinator.commit_offsets(group, NO_MEMBER, commits)
    return code


def held(world: Any) -> dict[str, dict[tuple[str, int], int]]:
    return {
        group.group_id: {
            place: committed.offset
            for place, committed in world.coordinator.fetch_offsets(group.group_id, None)
        }
        for group in at_once(world.coordinator.list_groups())[1]
    }


async def test_the_log_stays_short_under_endless_commits(small_world: Any) -> None:
    world = small_world
    for number in range(3_000):
        assert await commit(world, number, group=f"g{number % 7}", partition=number % 4) is ErrorCode.NONE
    await world.clock.settle()
    assert world.open[0].log_start_offset > 0
    before = held(world)
    assert len(before) == 7
    assert log_bytes(world) < 3 * SETTINGS.offsets_rewrite_log_bytes_min
    await world.kill()
    await world.start()
    assert held(world) == before


async def test_no_rewrite_is_due_while_the_log_is_short(
    small_world: Any,
) -> None:
    world = small_world
    for number in range(600):
        await commit(world, number, group=f"g{number}", note="x" * 100)
    assert await world.coordinator.shards.by_index[0].rewrite.write()
    start = world.open[0].log_start_offset
    for number in range(600):
        await commit(world, number, group=f"g{number}", note="y" * 100)
    await world.clock.settle()
    assert world.open[0].log_start_offset == start, "the live state is more than a quarter of the log"
    assert len(held(world)) == 600


async def test_a_log_written_under_a_larger_bound_is_loaded_and_rewritten(world_type: Any) -> None:
    world = world_type(replace(SETTINGS, coordinator_batch_bytes_max=1 << 20))
    world.topics["__consumer_offsets"] = (UUID(int=99), 1)
    await world.start()
    assert await commit(world, 1, group="long", note="x" * 4_000) is ErrorCode.NONE
    many = {("t", index): CommittedOffset(2) for index in range(500)}
    assert await world.coordinator.commit_offsets("wide", NO_MEMBER, many) is ErrorCode.NONE
    before = held(world)
    world.settings = replace(world.settings, coordinator_batch_bytes_max=1 << 10)
    for _ in range(2):
        await world.kill()
        await world.start()
        await world.clock.pass_ms(100)
        assert held(world) == before
        assert await world.coordinator.shards.by_index[0].rewrite.write()
    assert world.open[0].log_start_offset > 0
    await world.coordinator.close()
    assert world.failures == []


async def test_the_largest_record_can_be_rewritten(world_type: Any) -> None:
    world = world_type(SETTINGS)
    world.topics["__consumer_offsets"] = (UUID(int=99), 1)
    await world.start()
    size = SETTINGS.coordinator_batch_bytes_max
    while await commit(world, 1, note="x" * size) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE:
        size -= 1
    assert len(world.logs[0][-1]) == SETTINGS.coordinator_batch_bytes_max
    for _ in range(2):
        assert await world.coordinator.shards.by_index[0].rewrite.write()
        await world.kill()
        await world.start()
    assert held(world) == {"g": {("t", 0): 1}}
    await world.coordinator.close()
    assert world.failures == []


async def test_commits_during_a_rewrite_win(small_world: Any) -> None:
    world, partition = small_world, small_world.open[0]
    for number in range(400):
        await commit(world, number)
    partition.is_slow = True
    late = [asyncio.ensure_future(commit(world, 1_000 + n, group=f"g{n % 2}")) for n in range(10)]
    await world.clock.settle()
    rewrite = asyncio.ensure_future(world.coordinator.shards.by_index[0].rewrite.write())
    for _ in range(20):
        late.append(asyncio.ensure_future(commit(world, 2_000 + len(late), group=f"g{len(late) % 3}")))
        await world.clock.settle()
        partition.sync()
        await world.clock.settle()
    partition.is_slow = False
    assert set(await asyncio.gather(*late)) == {ErrorCode.NONE}
    assert await rewrite
    before = held(world)
    assert partition.log_start_offset > 400
    assert [before[name]["t", 0] for name in ("g", "g0", "g1", "g2")] == [399, 2_027, 2_028, 2_029]
    await world.kill()
    await world.start()
    assert held(world) == before


async def test_a_rewrite_does_not_overwrite_a_commit_in_flight(
    small_world: Any,
) -> None:
    world, partition = small_world, small_world.open[0]
    for number in range(BATCH_ENTRIES_MAX + 5):
        await commit(world, number, group=f"g{number}")
    last = f"g{BATCH_ENTRIES_MAX + 4}"
    partition.is_slow = True
    rewrite = asyncio.ensure_future(world.coordinator.shards.by_index[0].rewrite.write())
    await world.clock.settle()  # its first batch is on its way
    parts = len(partition._under_way)
    assert parts
    newer = asyncio.ensure_future(commit(world, 99_999, group=last))
    await world.clock.settle()
    partition.sync(count=parts)  # the commit is not durable yet when the batch with its group is made
    await world.clock.settle()
    while not rewrite.done():
        partition.sync()
        await world.clock.settle()
    assert await rewrite
    assert await newer is ErrorCode.NONE
    await world.kill()
    await world.start()
    assert held(world)[last] == {("t", 0): 99_999}


async def test_deletions_during_a_rewrite_win(small_world: Any) -> None:
    world, partition = small_world, small_world.open[0]
    for group in ("kept", "doomed", "emptied"):
        await commit(world, 7, group=group)
    shard = world.coordinator.shards.by_index[0]
    partition.is_slow = True
    rewrite = asyncio.ensure_future(shard.rewrite.write())
    doomed = asyncio.ensure_future(world.coordinator.delete_group("doomed"))
    emptied = asyncio.ensure_future(world.coordinator.delete_offsets("emptied", [("t", 0)]))
    await world.clock.settle()
    while not rewrite.done():
        partition.sync()
        await world.clock.settle()
    assert await rewrite
    assert await doomed is ErrorCode.NONE
    assert await emptied == {("t", 0): ErrorCode.NONE}
    await world.kill()
    await world.start()
    assert held(world) == {"kept": {("t", 0): 7}}


async def test_a_shard_that_closes_during_a_rewrite_loses_nothing(small_world: Any) -> None:
    world, partition = small_world, small_world.open[0]
    for number in range(1_200):
        await commit(world, number, group=f"g{number}", note="x" * 20)
    before, start = held(world), partition.log_start_offset
    partition.is_slow = True
    rewrite = asyncio.ensure_future(world.coordinator.shards.by_index[0].rewrite.write())
    await world.clock.settle()
    world.close_partition(0)  # memory is emptied here
    partition.is_slow = False
    partition.sync()
    await world.clock.settle()
    assert not await rewrite
    assert partition.log_start_offset == start
    world.open_partition(0)
    await world.clock.settle()
    assert held(world) == before


@pytest.mark.parametrize("error", [AppendBackpressureError("full"), StreamClosedError("gone")])
async def test_a_refused_rewrite_is_retried(small_world: Any, error: Exception) -> None:
    world, partition = small_world, small_world.open[0]
    for number in range(100):
        await commit(world, number)
    partition.refusal = error
    assert not await world.coordinator.shards.by_index[0].rewrite.write()
    partition.refusal = None
    assert await world.coordinator.shards.by_index[0].rewrite.write()
    await world.kill()
    await world.start()
    assert held(world) == {"g": {("t", 0): 99}}


async def test_a_failed_trim_is_retried_without_another_rewrite(small_world: Any) -> None:
    world, partition = small_world, small_world.open[0]
    partition.trim_refusal = AppendBackpressureError("full")
    for number in range(2_000):
        await commit(world, number)
    length = log_bytes(world)
    await world.clock.pass_ms(10_000)
    assert log_bytes(world) == length, "a rewrite was written at each attempt"
    partition.trim_refusal = None
    await world.clock.pass_ms(1_000)
    assert log_bytes(world) < length
    await world.kill()
    await world.start()
    assert held(world) == {"g": {("t", 0): 1_999}}


async def test_a_log_with_records_of_other_group_kinds_is_not_rewritten(small_world: Any) -> None:
    world = small_world
    await world.kill()
    world.logs[0].append(build_batch([(1, b"\x00\x63\x00\x01g", b"\x00\x00of a kind that is not known")]))
    await world.start()
    for number in range(2_000):
        await commit(world, number)
    await world.clock.settle()
    assert world.open[0].log_start_offset == 0
    assert log_bytes(world) > 3 * SETTINGS.offsets_rewrite_log_bytes_min


class Script:
    """Random steps of commits, deletions, rewrites, a slow disk and a crash, and the acknowledged state."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.asked: dict[tuple[str, int], list[int]] = {}
        self.acknowledged: dict[tuple[str, int], int] = {}
        self.tasks: list[asyncio.Future[Any]] = []
        self.count = 0

    async def commit(self, group: str, partition: int) -> None:
        self.count += 1
        offset = self.count
        self.asked.setdefault((group, partition), []).append(offset)
        if (
            await commit(self.world, offset, group=group, partition=partition, note="x" * 50)
            is ErrorCode.NONE
        ):
            place = (group, partition)
            self.acknowledged[place] = max(offset, self.acknowledged.get(place, 0))

    def start(self, coroutine: Any) -> None:
        self.tasks.append(asyncio.ensure_future(coroutine))

    async def run(self, steps: list[tuple[str, int]]) -> None:
        partition = self.world.open[0]
        partition.is_slow = True
        for step, number in steps:
            if step == "commit":
                self.start(self.commit(f"g{number % 5}", number % 3))
            elif step == "rewrite" and not self.world.coordinator.shards.by_index[0].rewrite._is_writing:
                self.start(self.world.coordinator.shards.by_index[0].rewrite.write())
            elif step == "sync":
                partition.sync()
            await asyncio.sleep(0)
            if number % 4 == 0:
                await self.world.clock.settle()


@given(
    st.lists(
        st.tuples(st.sampled_from(["commit", "commit", "commit", "rewrite", "sync"]), st.integers(0, 99)),
        max_size=60,
    )
)
@settings(deadline=None, max_examples=150)
def test_acknowledged_commits_survive_any_power_loss(world_type: Any, steps: list[tuple[str, int]]) -> None:
    async def story() -> None:
        world = world_type(SETTINGS)
        world.topics["__consumer_offsets"] = (UUID(int=99), 1)
        await world.start()
        script = Script(world)
        await script.run(steps)
        await world.kill()
        for task in script.tasks:
            task.cancel()
        await world.start()
        found = held(world)
        for (group, index), offset in script.acknowledged.items():
            assert found[group]["t", index] >= offset
            assert found[group]["t", index] in script.asked[group, index]
        await world.coordinator.close()
        assert world.failures == []

    asyncio.run(story())


async def test_the_budget_equals_the_groups_after_any_events(world_type: Any) -> None:
    world = world_type(SETTINGS)
    world.topics["__consumer_offsets"] = (UUID(int=99), 1)
    await world.start()
    for number in range(20):
        await commit(world, number, group=f"g{number % 3}", partition=number % 4)
    budget = world.coordinator.budget
    assert (budget.groups, budget.offsets) == (3, 12)
    full = budget.size_bytes
    await world.coordinator.delete_group("g0")
    assert (budget.groups, budget.offsets) == (2, 8)
    assert budget.size_bytes < full
    world.close_partition(0)
    assert (budget.groups, budget.offsets, budget.members, budget.size_bytes) == (0, 0, 0, 0)
    await world.coordinator.close()
