"""Offsets of transactions against a model that applies Kafka's rule to the whole history of the log.

After any commits, markers, deletions, rewrites and crashes the groups have exactly the model's offsets
(invariant 6 of docs/design/transactions.md).
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from ponor_broker.coordination import record_log
from ponor_broker.coordination.transactional_append import TransactionalProducer
from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.record_codec import decode_entry
from ponor_broker.groups.records import CommittedOffset, OffsetEntry
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.control_records import ControlType, read_end_marker
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.record_batch import BatchView

NO_MEMBER = MemberClaim("")
SETTINGS = GroupSettings(
    offsets_topic_partitions=1, offsets_rewrite_log_bytes_min=1 << 14, coordinator_batch_bytes_max=1 << 14
)
GROUPS = ("g0", "g1")
PARTITIONS = 2
PRODUCERS = 2

STEPS = [
    *("commit", "commit", "pend", "pend", "end", "end", "sync", "flush", "settle", "rewrite", "rewrite"),
    *("delete", "delete group", "take back", "crash", "commit within a rewrite"),
]

Key = tuple[str, int]


class History(list[bytearray]):
    """A log that also keeps the batches that were trimmed."""

    def __init__(self) -> None:
        super().__init__()
        self.everything: list[bytes] = []

    def append(self, batch: bytearray) -> None:
        super().append(batch)
        self.everything.append(bytes(batch))


@dataclass
class Model:
    """The visible and the pending offsets with their log positions."""

    visible: dict[Key, tuple[int, int]] = field(default_factory=dict)
    pending: dict[int, dict[Key, tuple[int, int]]] = field(default_factory=dict)

    def apply(self, batch: BatchView, first_position: int) -> None:
        if batch.is_control:
            marker = read_end_marker(batch)
            assert marker is not None
            ended = self.pending.pop(batch.producer_id, {})
            for key, (position, offset) in ended.items():
                is_newest = position > self.visible.get(key, (-1, 0))[0]
                if marker.kind is ControlType.COMMIT and is_newest:
                    self.visible[key] = position, offset
            return
        for delta, record in enumerate(batch.records(1 << 20)):
            if record.headers:
                continue  # of a rewrite, which changes nothing
            entry = decode_entry(record.key, record.value)
            if not isinstance(entry, OffsetEntry):
                continue
            key = entry.key.group_id, entry.key.partition
            if entry.value is None:
                self.visible.pop(key, None)
                for of_producer in self.pending.values():
                    of_producer.pop(key, None)
                continue
            value = first_position + delta, entry.value.offset
            if batch.is_transactional:
                self.pending.setdefault(batch.producer_id, {})[key] = value
            else:
                self.visible[key] = value

    @property
    def unstable(self) -> set[Key]:
        return {key for of_producer in self.pending.values() for key in of_producer}


def model_of(history: History) -> Model:
    model = Model()
    position = 0
    for content in history.everything:
        batch = BatchView(memoryview(content))
        model.apply(batch, position)
        position += batch.record_count
    return model


class Script:
    """Random steps; `check` compares the groups with the model."""

    def __init__(self, world: Any, history: History) -> None:
        self.world = world
        self.history = history
        self.tasks: list[asyncio.Future[Any]] = []
        self.count = 0

    @property
    def shard(self) -> Any:
        return self.world.coordinator.shards.by_index[0]

    def start(self, coroutine: Any) -> None:
        self.tasks.append(asyncio.ensure_future(coroutine))

    def commits(self, number: int) -> dict[tuple[str, int], CommittedOffset]:
        self.count += 1
        return {("t", number % PARTITIONS): CommittedOffset(self.count)}

    async def in_transaction(self, group: str, producer_id: int, commits: Any) -> None:
        proof = self.shard.begin_verification(producer_id, 0, generation=1)
        producer = TransactionalProducer(producer_id, 0, proof)
        error = await self.shard.commit_in_transaction(group, NO_MEMBER, commits, producer)
        assert error in {ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE}

    async def run(self, step: str, number: int) -> None:
        partition, group = self.world.open[0], GROUPS[number % 7 == 0]
        producer_id = number % PRODUCERS
        match step:
            case "commit":
                commits = self.commits(number // 2)
                self.start(self.world.coordinator.commit_offsets(group, NO_MEMBER, commits))
            case "pend":
                self.start(self.in_transaction(group, producer_id, self.commits(number // 2)))
            case "end":
                partition.append_marker(producer_id, commits=number % 4 != 0)
            case "delete":
                places = [("t", number // 2 % PARTITIONS)]
                self.start(self.world.coordinator.delete_offsets(group, places))
            case "delete group":
                self.start(self.world.coordinator.delete_group(group))
            case "rewrite":
                if not self.shard.rewrite._is_writing:
                    self.start(self.shard.rewrite.write())
            case "sync":
                partition.sync(count=number % 5 + 1, told_backwards=number % 2 == 0)
            case "commit within a rewrite":
                # The rewrite waits for the first write; its rows follow the offset and its marker.
                for inner in ("flush", "commit", "rewrite", "pend", "end"):
                    await self.run(inner, number)
                partition.sync(count=1)
                await self.world.clock.settle()
            case "flush":
                partition.sync()
                await self.world.clock.settle()
            case "settle":
                await self.world.clock.settle()
            case "take back":
                self.world.take_back(0)
                partition.sync()
                await self.world.clock.pass_ms(100)
            case "crash":
                await self.crash()
        await asyncio.sleep(0)

    async def crash(self) -> None:
        await self.world.kill()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        await self.world.start()
        self.world.open[0].is_slow = True
        self.check()

    def check(self) -> None:
        model, coordinator = model_of(self.history), self.world.coordinator
        for group in GROUPS:
            expected = {place: value[1] for (of, place), value in model.visible.items() if of == group}
            found = {place: one.offset for (_, place), one in coordinator.fetch_offsets(group, None)}
            assert found == expected
            wanted = [("t", place) for place in range(PARTITIONS)]
            stable = coordinator.fetch_offsets(group, wanted, require_stable=True)
            unstable = {(group, place) for (_, place), one in stable if isinstance(one, ErrorCode)}
            assert unstable == {key for key in model.unstable if key[0] == group}

    async def finish(self) -> None:
        """Complete everything and compare; then again after a restart."""
        partition = self.world.open[0]
        while partition._under_way or not all(task.done() for task in self.tasks):
            partition.sync()
            await self.world.clock.settle()
        await asyncio.gather(*self.tasks)
        self.check()
        await self.crash()


@pytest.mark.parametrize("seed", range(40))
def test_offsets_equal_the_model(world_type: Any, seed: int) -> None:
    randomness = random.Random(seed)

    async def story() -> None:
        world, history = world_type(SETTINGS), History()
        world.topics[OFFSETS_TOPIC] = (UUID(int=99), 1)
        world.logs[0] = history
        await world.start()
        world.open[0].is_slow = True
        script = Script(world, history)
        for _ in range(200):
            await script.run(randomness.choice(STEPS), randomness.randrange(28))
        await script.finish()
        assert_budget(world)
        await world.coordinator.close()
        assert world.failures == []

    with mock.patch.object(record_log, "PLACE_BYTES", 1):
        asyncio.run(story())


def assert_budget(world: Any) -> None:
    """The budget is that of the groups, and empty when they are unloaded."""
    budget = world.coordinator.budget
    groups = world.coordinator.shards.by_index[0].groups()
    assert sum(group.counted.size_bytes for group in groups) <= budget.size_bytes
    assert all(group.counted == group.holding for group in groups)
    world.close_partition(0)
    assert (budget.groups, budget.offsets, budget.size_bytes) == (0, 0, 0)


async def test_a_transaction_that_stays_open_keeps_the_log_and_causes_no_endless_rewrites(
    world_type: Any,
) -> None:
    world = world_type(replace(SETTINGS))
    world.topics[OFFSETS_TOPIC] = (UUID(int=99), 1)
    await world.start()
    script = Script(world, History())
    await script.in_transaction("g0", 7, {("t", 0): CommittedOffset(5)})
    for number in range(1_500):
        place = ("t", 1 + number % 3)
        await world.coordinator.commit_offsets("g1", NO_MEMBER, {place: CommittedOffset(number)})
    await world.clock.settle()
    assert world.open[0].log_start_offset == 0
    assert len(world.logs[0]) == 1_501, "a rewrite that cannot shorten the log was written"
    world.open[0].append_marker(7, commits=True)
    await world.clock.settle()
    assert world.open[0].log_start_offset > 1_000
    await world.kill()
    await world.start()
    assert world.coordinator.fetch_offsets("g0", None) == [(("t", 0), CommittedOffset(5))]
    await world.coordinator.close()
    assert world.failures == []
