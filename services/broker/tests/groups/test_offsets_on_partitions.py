"""Offsets of transactions in a real partition in memory: proofs, markers, and a crash at every point."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from ponor_broker.coordination.record_log import RecordLog, completion_budget
from ponor_broker.coordination.timers import TimerQueue
from ponor_broker.coordination.transactional_append import TransactionalProducer
from ponor_broker.groups.events import MemberClaim
from ponor_broker.groups.group_counters import GroupCounters
from ponor_broker.groups.group_table import GroupBudget
from ponor_broker.groups.record_codec import CODEC, Entry
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.groups.shard import GroupShard
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.marker_writer import MarkerWriter, PlacedMarker
from ponor_broker.partitions.partition_transactions import TransactionMarker
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.record_batch import BatchView
from ponor_runtime.tasks import BackgroundTasks
from ponor_runtime.telemetry import Telemetry
from ponor_runtime.turns import Turns

from services.broker.tests.consumer_kit import MemoryTopics
from services.broker.tests.groups.test_pending_offsets_model import Model
from services.broker.tests.partitions.transactions.transaction_kit import TransactionRig
from services.broker.tests.streams_kit import NoCreator

NO_MEMBER = MemberClaim("")
SETTINGS = GroupSettings()


class ShardRig:
    """The groups of one partition; `open` continues from what is durable."""

    def __init__(self) -> None:
        self.rig = TransactionRig()
        self.rig.rig.topic = OFFSETS_TOPIC
        self.failures: list[BaseException] = []

    async def open(self, *, loads: bool = True) -> None:
        clock = self.rig.rig.clock
        self.partition = await self.rig.open()
        log: RecordLog[Entry] = RecordLog(
            OFFSETS_TOPIC,
            self.partition,
            CODEC,
            now_ms=clock.wall_ms,
            batch_bytes_max=1 << 20,
            in_flight_max=100,
            load_bytes_max=1 << 20,
            completions=completion_budget(clock),
        )
        tasks = BackgroundTasks(lambda _, error: self.failures.append(error))
        self.shard = GroupShard(
            log,
            settings=SETTINGS,
            clock=clock,
            timers=TimerQueue(clock, tasks),
            budget=GroupBudget(SETTINGS, Telemetry().counter("ponor_group_refusals_total")),
            counters=GroupCounters(Telemetry()),
            rewrite_due=lambda: None,
            forget_due=lambda: None,
            is_gone=lambda *_: False,
            topics=MemoryTopics(),
            creator=NoCreator(),
            turns=Turns(),
            spawn=tasks.spawn,
            failed=lambda: None,
        )
        if loads:
            await self.shard.load()

    async def commit(self, offset: int, place: int) -> ErrorCode:
        return await self.shard.commit("g", NO_MEMBER, {("t", place): CommittedOffset(offset)})

    async def pend(self, producer_id: int, offset: int, place: int, *, epoch: int = 0) -> ErrorCode:
        proof = self.shard.begin_verification(producer_id, epoch, generation=1)
        producer = TransactionalProducer(producer_id, epoch, proof)
        commits = {("t", place): CommittedOffset(offset)}
        return await self.shard.commit_in_transaction("g", NO_MEMBER, commits, producer)

    @property
    def state(self) -> tuple[dict[int, int], set[int]]:
        """Visible offsets, and the partitions with pending ones."""
        group = self.shard.get("g")
        if group is None:
            return {}, set()
        visible = {place: committed.offset for (_, place), committed in group.offsets.items()}
        return visible, {place for _, (_, place), _ in group.offsets.pending()}

    async def expected(self) -> tuple[dict[int, int], set[int]]:
        """The state that the durable log has."""
        model, offset = Model(), 0
        while batches := await self.partition.read_batches(offset, 1 << 20):
            for content in batches:
                batch = BatchView(content)
                model.apply(batch, batch.base_offset)
                offset = batch.next_offset
        visible = {place: value for (_, place), (_, value) in model.visible.items()}
        return visible, {place for _, place in model.unstable}


@pytest.fixture
async def rig() -> Any:
    rig = ShardRig()
    await rig.open()
    yield rig
    assert rig.failures == []


async def test_a_batch_needs_a_proof_and_holds_back_the_last_stable_offset(rig: ShardRig) -> None:
    producer = TransactionalProducer(7, 0)
    commits = {("t", 0): CommittedOffset(1)}
    refused = await rig.shard.commit_in_transaction("g", NO_MEMBER, commits, producer)
    assert refused is ErrorCode.INVALID_TXN_STATE
    assert await rig.pend(7, 1, 0) is ErrorCode.NONE
    assert await rig.commit(5, 1) is ErrorCode.NONE
    assert rig.partition.last_stable_offset == 0
    assert await rig.shard.commit_in_transaction("g", NO_MEMBER, commits, producer) is ErrorCode.NONE
    await rig.rig.end(7, commits=True)
    await asyncio.sleep(0)
    assert rig.partition.last_stable_offset == rig.partition.high_watermark == 4
    assert rig.state == ({0: 1, 1: 5}, set())


async def test_a_batch_of_an_old_epoch_is_refused(rig: ShardRig) -> None:
    await rig.pend(7, 1, 0, epoch=3)
    await rig.rig.end(7, 3, commits=True)
    assert await rig.pend(7, 2, 0, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    await asyncio.sleep(0)
    assert rig.state == ({0: 1}, set())


async def test_markers_are_refused_while_the_groups_are_not_loaded(rig: ShardRig) -> None:
    await rig.pend(7, 1, 0)
    await rig.rig.reopen()
    await rig.open(loads=False)
    with pytest.raises(PartitionError) as refused:
        await rig.rig.end(7, commits=True)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await rig.shard.load()
    assert rig.state == ({}, {0})
    await rig.rig.end(7, commits=True)
    await asyncio.sleep(0)
    assert rig.state == ({0: 1}, set())


@pytest.mark.parametrize("seed", range(8))
async def test_a_crash_at_any_point_restores_what_the_log_has(seed: int) -> None:
    randomness = random.Random(seed)
    rig = ShardRig()
    await rig.open()
    for offset in range(20):
        place, producer_id = randomness.randrange(2), 7 + randomness.randrange(2)
        match randomness.randrange(4):
            case 0:
                await rig.commit(offset, place)
            case 1:
                await rig.rig.end(producer_id, commits=randomness.random() < 0.6)
            case _:
                await rig.pend(producer_id, offset, place)
    await asyncio.sleep(0)
    assert rig.state == await rig.expected()
    for kept in range(len(rig.rig.streams.log), -1, -1):
        rig.rig.streams.crash(kept)
        written = list(rig.rig.streams.log)
        await rig.open()
        assert rig.state == await rig.expected()
        rig.rig.streams.log[:] = written  # without what the open wrote
    assert rig.failures == []


async def test_a_marker_whose_request_is_cancelled_still_applies(rig: ShardRig) -> None:
    """The coordinator's broker stops while the marker is in flight. Without the marker, memory would have an
    older state than the log, and a rewrite of the log would lose the committed offset.
    """
    assert await rig.commit(1, 0) is ErrorCode.NONE
    assert await rig.pend(7, 2, 0) is ErrorCode.NONE
    stream = rig.rig.rig.stream("log")
    stream.hold = True
    partitions: Any = SimpleNamespace(find=lambda *_: rig.partition)
    writer = MarkerWriter(partitions, rig.rig.rig.owned, rig.rig.rig.clock)
    marker = PlacedMarker(TransactionMarker(7, 0, 0, commits=True), OFFSETS_TOPIC, 0)
    writing = asyncio.ensure_future(writer.write([marker]))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    stream.hold = False
    stream.confirm()
    await asyncio.sleep(0)
    assert rig.state == ({0: 2}, set())
    assert await rig.shard.rewrite.write()
    await rig.rig.reopen()
    await rig.open()
    assert rig.state == ({0: 2}, set())
