"""Pipelining producers of a partition whose storage refuses at random, and a planted bug that
changes their order.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from services.broker.tests.partition_rig import PartitionRig
from services.broker.tests.partitions.state.test_refused_sequences import Producer
from tests.simulation.mutants.table import MUTANTS

SEEDS = 40
STEPS = 150


async def run_producers(seed: int) -> None:
    """Three producers send, requests arrive, and the storage is full or not, at random.

    Raises:
        AssertionError: a batch was refused permanently.
    """
    chance = random.Random(seed)
    rig = PartitionRig()
    partition = await rig.open()
    log = rig.stream("log")
    producers = [Producer(producer_id, 10) for producer_id in range(3)]
    for _ in range(STEPS):
        producer = chance.choice(producers)
        if chance.random() < 0.5:
            producer.send()
        else:
            producer.arrive(partition)
        if chance.random() < 0.1:
            log.is_full = not log.is_full
        await asyncio.sleep(0)


async def test_no_producer_is_refused_permanently() -> None:
    for seed in range(SEEDS):
        await run_producers(seed)


async def test_the_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["broker_forgets_refusals"].plant(monkeypatch)
    with pytest.raises(AssertionError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        for seed in range(SEEDS):
            await run_producers(seed)
