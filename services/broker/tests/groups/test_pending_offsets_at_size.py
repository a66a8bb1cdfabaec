"""Work on many pending offsets takes place in turns, whatever their distribution over groups, partitions and
producers.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.offsets import OffsetTable
from ponor_broker.groups.pending_offsets import PendingOffsets
from ponor_broker.groups.pending_replay import PendingReplay
from ponor_broker.groups.records import CommittedOffset, OffsetEntry, OffsetKey
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_runtime.turns import at_once

SHAPES = [(50, 100, 1), (1, 1, 5_000), (5, 10, 100), (1, 5_000, 1)]
"""Groups, partitions of each, and producers of each partition."""


async def world_with(world_type: Any, groups: int, partitions: int, producers: int) -> Any:
    """Start a broker with one shard and these pending offsets."""
    world = world_type(GroupSettings(offsets_topic_partitions=1))
    world.topics[OFFSETS_TOPIC] = (UUID(int=99), 1)
    await world.start()
    shard = world.coordinator.shards.by_index[0]
    for number in range(groups):
        name = f"g{number}"
        one = {("t", 0): CommittedOffset(0)}
        assert await world.coordinator.commit_offsets(name, MemberClaim(""), one) is ErrorCode.NONE
        for partition in range(partitions):
            for producer_id in range(producers):
                offset = CommittedOffset(1)
                shard._put_pending(shard.get(name), producer_id, ("t", partition), offset)
    return world


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_search_for_deleted_topics_checks_pending_offsets_in_turns(
    world_type: Any, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int]
) -> None:
    world = await world_with(world_type, *shape)
    groups, partitions, producers = shape
    count, per_turn, topic_id = groups * (partitions * producers + 1), [0], world.topic_id

    def counted(name: str) -> UUID | None:
        if not per_turn[-1]:
            asyncio.get_running_loop().call_soon(per_turn.append, 0)
        per_turn[-1] += 1
        found: UUID | None = topic_id(name)
        return found

    monkeypatch.setattr(world, "topic_id", counted)
    world.coordinator.topics_deleted()
    while sum(per_turn) < count:
        await asyncio.sleep(0)
    assert max(per_turn) <= 2_100
    await world.coordinator.close()


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_shard_that_closes_frees_pending_offsets_in_turns(
    world_type: Any, shape: tuple[int, int, int]
) -> None:
    world = await world_with(world_type, *shape)
    shard = world.coordinator.shards.by_index.pop(0)
    groups = shard.groups()
    held = [sum(len(list(group.offsets.pending())) for group in groups)]
    for _ in shard.close(ErrorCode.NOT_COORDINATOR):
        held.append(sum(len(list(group.offsets.pending())) for group in groups))
    held.append(sum(len(list(group.offsets.pending())) for group in groups))
    assert held[0] == 5_000
    assert held[-1] == 0
    assert max(before - after for before, after in itertools.pairwise(held)) <= 2_000
    await world.coordinator.close()


class ScannedDict(dict[int, Any]):
    """Counts scans: each one skips the rows that were deleted before."""

    scans = 0

    def __iter__(self) -> Iterator[int]:
        self.scans += 1
        return super().__iter__()

    def __reversed__(self) -> Iterator[int]:
        self.scans += 1
        return super().__reversed__()


def test_the_offsets_of_many_producers_are_freed_with_one_scan_per_step() -> None:
    pending: PendingOffsets[str] = PendingOffsets()
    rows = pending._by_producer = ScannedDict()
    for producer_id in range(2_000):
        pending.add(producer_id, "k", CommittedOffset(1))
    pending.forget(1_000)
    assert (len(pending), rows.scans) == (1_000, 1)
    pending.forget(1_500)
    assert (len(pending), rows.scans) == (0, 2)


def delete_group(world: Any, group_id: str, _: int) -> Awaitable[object]:
    deletion: Awaitable[object] = world.coordinator.delete_group(group_id)
    return deletion


def delete_offsets(world: Any, group_id: str, partitions: int) -> Awaitable[object]:
    doomed = [("t", index) for index in range(partitions)]
    deletion: Awaitable[object] = world.coordinator.delete_offsets(group_id, doomed)
    return deletion


@pytest.mark.parametrize("delete", [delete_group, delete_offsets])
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_deletion_removes_pending_offsets_in_turns(
    world_type: Any, shape: tuple[int, int, int], delete: Callable[[Any, str, int], Awaitable[object]]
) -> None:
    world = await world_with(world_type, *shape)
    groups, partitions, _ = shape
    tables = [group.offsets for group in world.coordinator.shards.by_index[0].groups()]
    deletions = [asyncio.ensure_future(delete(world, f"g{number}", partitions)) for number in range(groups)]
    held = [5_000]
    while not all(deletion.done() for deletion in deletions):
        await asyncio.sleep(0)
        held.append(sum(table.rows - len(table) for table in tables))
    assert held[-1] == 0
    assert max(before - after for before, after in itertools.pairwise(held)) <= 2_000
    await world.coordinator.close()


def test_a_replay_removes_the_pending_offsets_of_a_tombstone_in_steps() -> None:
    replay, key = PendingReplay({}), OffsetKey("g", "t", 0)
    for producer_id in range(5_000):
        replay.add(producer_id, OffsetEntry(key, CommittedOffset(1)))
    held = [5_000]
    held += [len(replay.pending) for _ in replay.outdate(OffsetEntry(key, None)) or ()]
    assert len(held) > 5_000
    assert held[-1] == 0
    assert max(before - after for before, after in itertools.pairwise(held)) <= 200


def lines_run(work: Callable[[], object]) -> int:
    """Return the number of lines that Python runs for `work`."""
    lines = 0

    def traced(_frame: Any, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize(
    "work",
    [
        lambda pending: pending.outdate("k"),
        lambda pending: pending.end(0, commits=True),
        lambda pending: pending.end(pending.count_of_producers - 1, commits=True),
    ],
    ids=["commit", "oldest", "newest"],
)
def test_a_newer_offset_outdates_those_of_many_producers_at_constant_cost(
    work: Callable[[Any], object],
) -> None:
    """A group with 290 partitions and a transaction of each of 1,000 producers took 0.7 s per commit."""

    def of(producers: int) -> int:
        pending: Any = PendingOffsets()
        for producer_id in range(producers):
            pending.add(producer_id, "k", CommittedOffset(producer_id))
        pending.count_of_producers = producers
        return lines_run(lambda: work(pending))

    assert of(1_000) == of(10)


class Lookups(Counter[int]):
    """Counts look-ups of producers."""

    count = 0

    def __contains__(self, key: object) -> bool:
        self.count += 1
        return super().__contains__(key)


async def test_a_rewrite_does_not_look_up_each_producer_of_each_partition(world_type: Any) -> None:
    world = await world_with(world_type, 1, 1, 1_000)
    shard = world.coordinator.shards.by_index[0]
    lookups = shard._log._commits_in_flight = Lookups()
    assert [row.key.partition for row in shard._current()] == [0]
    assert lookups.count <= 10
    await world.coordinator.close()


async def test_a_rewrite_skips_the_rows_of_a_committing_transaction_in_turns(world_type: Any) -> None:
    world = await world_with(world_type, 1, 1_000, 1)
    shard = world.coordinator.shards.by_index[0]
    table = shard.get("g0").offsets
    for place in table.pending_partitions():
        table._put(place, CommittedOffset(1))
    shard._log._commits_in_flight[0] += 1
    rows = shard._current()
    assert shard.rewrite._next_batch(rows) == (0, [])
    assert len(list(rows)) >= 500
    await world.coordinator.close()


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_rewrite_skips_groups_without_committed_offsets_in_turns(
    world_type: Any, has_ended: bool
) -> None:
    world = await world_with(world_type, 0, 0, 0)
    shard = world.coordinator.shards.by_index[0]
    for number in range(1_000):
        shard._put_pending(shard._table.add(f"g{number}"), 7, ("t", 0), CommittedOffset(1))
    if has_ended:
        at_once(shard._transaction_ended(7, commits=False))
    rows = shard._current()
    assert shard.rewrite._next_batch(rows) == (0, [])
    assert len(list(rows)) >= 500
    await world.coordinator.close()


class ListedCounter(Counter[int]):
    """Counts the rows that it lists."""

    listed = 0

    def items(self) -> Any:
        self.listed += len(self)
        return super().items()


async def test_the_end_of_a_marker_does_not_list_the_markers_in_flight(world_type: Any) -> None:
    world = await world_with(world_type, 1, 1, 1)
    shard, partition = world.coordinator.shards.by_index[0], world.open[0]
    in_flight = shard._log._commits_in_flight = ListedCounter()
    partition.is_slow = True
    for producer_id in [*range(100), 7]:
        partition.append_marker(producer_id, commits=True)
    partition.sync(count=100)
    await asyncio.sleep(0)
    assert shard._log._commits_in_flight == {7: 1}
    partition.sync()
    await asyncio.sleep(0)
    assert not shard._log._commits_in_flight
    assert in_flight.listed == 0
    await world.coordinator.close()


async def test_the_markers_of_many_partitions_take_effect_in_shared_turns(
    world_type: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stalled disk makes them durable together: 1,000 offsets in each of 50 partitions took 0.1 s."""
    count = 20
    world = world_type(GroupSettings(offsets_topic_partitions=count))
    world.topics[OFFSETS_TOPIC] = (UUID(int=99), count)
    await world.start()
    tables = []
    for index, shard in world.coordinator.shards.by_index.items():
        group = shard._table.add(f"g{index}")
        shard._put_pending(group, 7, ("t", 0), CommittedOffset(1))
        tables.append(group.offsets)
    per_turn, end = [0], OffsetTable.end_transaction

    def counted(table: OffsetTable, *args: Any, **options: Any) -> int:
        if not per_turn[-1]:
            asyncio.get_running_loop().call_soon(per_turn.append, 0)
        per_turn[-1] += 1
        world.clock.now_ns += 3_000_000
        return end(table, *args, **options)

    monkeypatch.setattr(OffsetTable, "end_transaction", counted)
    for index in range(count):
        world.open[index].append_marker(7, commits=True)
    while not all(map(len, tables)):
        await asyncio.sleep(0)
    assert sum(per_turn) == count
    assert max(per_turn) <= 2
    await world.coordinator.close()
