"""Bounds of the coordinator's work in one turn of the event loop."""

from __future__ import annotations

import asyncio

import pytest
from ponor_broker.transactions.coordinator import BATCHED_PER_TURN_MAX, BatchedAdd
from ponor_broker.transactions.events import AddRequest, ProducerClaim
from ponor_broker.transactions.instructions import TransactionAnswer
from ponor_broker.transactions.shard import TransactionShard
from ponor_kafka.errors import ErrorCode
from ponor_runtime.identity import ProducerId

from services.broker.tests.transactions.coordinator_world import FIRST_PRODUCER_ID, TransactionWorld

IDS = 300


async def test_the_transactions_of_brokers_requests_share_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 adds of one request took 40 to 60 ms, and those of several brokers arrive together."""
    world = TransactionWorld()
    await world.start()
    for number in range(IDS):
        assert (await world.init(f"id-{number}")).startswith("NONE")
    add_partitions, per_turn = TransactionShard.add_partitions, [0]

    async def counted(shard: TransactionShard, name: str, request: AddRequest) -> TransactionAnswer:
        if not per_turn[-1]:
            asyncio.get_running_loop().call_soon(per_turn.append, 0)
        per_turn[-1] += 1
        return await add_partitions(shard, name, request)

    monkeypatch.setattr(TransactionShard, "add_partitions", counted)
    batch = [
        BatchedAdd(
            f"id-{number}",
            AddRequest(ProducerClaim(ProducerId(FIRST_PRODUCER_ID + number), 0), {("t", 1)}, True),
            False,
        )
        for number in range(IDS)
    ]
    halves = batch[: IDS // 2], batch[IDS // 2 :]
    requests = [asyncio.ensure_future(world.coordinator.add_batched(half)) for half in halves]
    while not all(one.done() for one in requests):
        await world.clock.settle()
    assert [one for request in requests for one in request.result()] == [ErrorCode.NONE] * IDS
    assert sum(per_turn) == IDS
    assert max(per_turn) <= BATCHED_PER_TURN_MAX
    await world.coordinator.close()
    assert world.failures == []
