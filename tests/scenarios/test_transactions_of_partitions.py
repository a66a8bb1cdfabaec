"""Open and aborted transactions of a partition over moves, crashes and failovers, with real storage.

The test is the transaction coordinator: it sends the markers, and each transactional batch gets a proof of
verification without a question.
"""

from __future__ import annotations

from typing import Any

import pytest
from ponor_broker.handlers.produce.verified_batches import VerifiedBatches
from ponor_broker.partitions.partition import Partition
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ponor_kafka.record_batch import BatchView
from ponor_metadata.nouns.nodes import WalKind

from tests.scenarios.moving_world import ASK_S_MAX, TOPIC
from tests.scenarios.test_brokers_without_disks import World

ABORTED, OPEN, COMMITTED = 1, 2, 3


@pytest.fixture(autouse=True)
def proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each transactional batch a proof without a coordinator."""
    append = Partition.append

    def with_proof(self: Partition, batch: BatchView, now_ms: int, on_settled: Any, **named: Any) -> int:
        if batch.is_transactional and named.get("verification") is None:
            begin = self.transactions.begin_verification
            named["verification"] = begin(batch.producer_id, batch.producer_epoch, generation=1)
        return append(self, batch, now_ms, on_settled, **named)

    monkeypatch.setattr(Partition, "append", with_proof)
    monkeypatch.setattr(VerifiedBatches, "wait_for", lambda *_: False)


async def append(world: World, name: str, producer_id: int, sequence: int) -> None:
    answer = await world.produce(name, 2, producer_id=producer_id, sequence=sequence, transactional=True)
    assert answer.error_code == ErrorCode.NONE


async def end(world: World, name: str, producer_id: int, *, commits: bool) -> None:
    """Send a marker; the leader appends it."""
    rows = [WritableTxnMarker(producer_id, 0, commits, [WritableTxnMarkerTopic(TOPIC, [0])], 0, 0)]
    client = await world.client(name)
    answer = await client.ask(WriteTxnMarkersRequest(rows), 1, WriteTxnMarkersResponse, timeout_s=ASK_S_MAX)
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE


async def begin(world: World, name: str) -> None:
    """Append an aborted transaction [0, 2), an open one from 3 on, and a committed one [5, 7)."""
    await append(world, name, ABORTED, 0)
    await end(world, name, ABORTED, commits=False)
    await append(world, name, OPEN, 0)
    await append(world, name, COMMITTED, 0)
    await end(world, name, COMMITTED, commits=True)


async def check(world: World, name: str, *, stable: int, aborted: list[tuple[int, int]]) -> None:
    """Compare what a reader of committed records gets."""
    found = await world.fetch(name, isolation_level=1)
    assert (found.error_code, found.last_stable_offset) == (ErrorCode.NONE, stable)
    assert found.aborted_transactions is not None
    assert [(one.producer_id, one.first_offset) for one in found.aborted_transactions] == aborted
    partition = world.services[name].partitions.find(TOPIC, 0)
    assert (partition.last_stable_offset, partition.state.aborted.end_offset) == (stable, len(aborted))


async def finish(world: World, name: str) -> None:
    """End the open transaction at its next leader."""
    await check(world, name, stable=3, aborted=[(ABORTED, 0)])
    await append(world, name, OPEN, 2)
    await end(world, name, OPEN, commits=False)
    await check(world, name, stable=11, aborted=[(ABORTED, 0), (OPEN, 3)])


@pytest.mark.parametrize("wal", WalKind)
def test_transactions_move_with_their_partition(wal: WalKind) -> None:
    async def story(world: World) -> None:
        source = world.leader()
        target = world.other(source)
        await begin(world, source)
        await world.move(target)
        await world.until(lambda: world.leader() == target and world.serves_somewhere())
        await finish(world, target)
        await world.move(source)
        await world.until(lambda: world.leader() == source and world.serves_somewhere())
        await check(world, source, stable=11, aborted=[(ABORTED, 0), (OPEN, 3)])

    World(1, wal=wal).happen(story)


@pytest.mark.parametrize("power_loss", [False, True])
def test_another_broker_continues_the_transactions_of_a_dead_one(power_loss: bool) -> None:
    async def story(world: World) -> None:
        dead = world.leader()
        await begin(world, dead)
        world.cluster.processes[dead].crash(power_loss=power_loss)
        successor = await world.taken_over(dead)
        await finish(world, successor)
        world.cluster.processes[successor].crash(power_loss=power_loss)
        await world.back(dead)
        await world.taken_over(successor)
        await check(world, dead, stable=11, aborted=[(ABORTED, 0), (OPEN, 3)])

    World(2).happen(story)


@pytest.mark.parametrize("wal", WalKind)
def test_a_broker_that_restarts_continues_its_transactions(wal: WalKind) -> None:
    async def story(world: World) -> None:
        name = world.leader()
        await begin(world, name)
        for _ in range(2):
            world.cluster.processes[name].crash(power_loss=True)
            await world.back(name)
            await world.until(world.serves_somewhere)
            await check(world, name, stable=3, aborted=[(ABORTED, 0)])
        await finish(world, name)
        world.cluster.processes[name].crash()
        await world.back(name)
        await world.until(world.serves_somewhere)
        await check(world, name, stable=11, aborted=[(ABORTED, 0), (OPEN, 3)])

    World(3, brokers=1, wal=wal).happen(story)
