"""Bounds of the work in one turn of the event loop when partitions close or move together."""

from __future__ import annotations

import asyncio

import pytest
from ponor_broker.partitions.handoff import partition_closing
from ponor_broker.partitions.handoff.partition_closing import PERSISTED_PER_TURN_MAX
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.state.producer_state import ROWS_PER_STEP, ProducerStates
from ponor_runtime.turns import TurnBudget

from services.broker.tests.partition_rig import PartitionRig, batch, turns


async def _move(partition: Partition, budget: TurnBudget) -> None:
    partition_closing.begin_move(partition)
    await partition_closing.persist_for_move(partition, budget)


@pytest.mark.parametrize("leave", [_move, partition_closing.seal])
async def test_partitions_that_leave_together_write_their_checkpoints_in_turns(
    monkeypatch: pytest.MonkeyPatch, leave: object
) -> None:
    """128 partitions with 10,000 producers each took 0.3 s of one turn."""
    written, per_turn = Partition.write_clean_checkpoint, [0]

    def counted(partition: Partition, *, whole: bool = False) -> None:
        if not per_turn[-1]:
            asyncio.get_running_loop().call_soon(per_turn.append, 0)
        per_turn[-1] += 1
        written(partition, whole=whole)

    monkeypatch.setattr(Partition, "write_clean_checkpoint", counted)
    partitions = [await PartitionRig().open() for _ in range(100)]
    for partition in partitions[::2]:
        partition.append(batch(), 5, lambda _: None)
    budget = turns()
    assert callable(leave)
    await asyncio.gather(*(leave(partition, budget) for partition in partitions))
    assert sum(per_turn) == 100
    assert max(per_turn) <= PERSISTED_PER_TURN_MAX
    assert all(partition.state.checkpoint.clean_shutdown for partition in partitions)


async def test_a_partition_encodes_its_producers_in_steps_before_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10,000 producers that were used since the last upload took 25 ms."""
    rig = PartitionRig()
    partition = await rig.open()
    for producer_id in range(90):
        partition.append(batch(producer_id=producer_id, epoch=0, sequence=0), 5, lambda _: None)
    rest, steps = ProducerStates.rest, [0]

    def counted(producers: ProducerStates, limit: int = ROWS_PER_STEP) -> bool:
        if not steps[-1]:
            asyncio.get_running_loop().call_soon(steps.append, 0)
        steps[-1] += 1
        return rest(producers, min(limit, 20))

    monkeypatch.setattr(ProducerStates, "rest", counted)
    budget = TurnBudget(rig.clock, count_max=1, duration_ns_max=1)
    await _move(partition, budget)
    assert len([count for count in steps if count]) >= 5
    monkeypatch.undo()
    partition = await rig.open()
    assert len(partition.producers) == 90


async def test_a_move_that_is_cancelled_while_producers_are_encoded_writes_nothing() -> None:
    rig = PartitionRig()
    partition = await rig.open()
    budget = TurnBudget(rig.clock, count_max=1, duration_ns_max=1)
    moving = asyncio.ensure_future(_move(partition, budget))
    budget.spend()
    await asyncio.sleep(0)
    partition_closing.reopen(partition)
    partition.append(batch(), 5, lambda _: None)
    await moving
    assert not partition.state.checkpoint.clean_shutdown
    assert partition.append(batch(), 5, lambda _: None) == 1
