"""Everything that reads produced batches later can process each batch that Produce accepts."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from ponor_broker.partitions.topics.topic_config import TopicConfig

from tests.fuzz.accepted_batches import CONFIGS, AcceptedBatches
from tests.fuzz.hostile_batches import hostile_batch

BATCHES = 6


@settings(max_examples=60)
@given(st.integers(0, (1 << 32) - 1), st.sampled_from(CONFIGS))
async def test_accepted_batches_can_be_read(seed: int, config: TopicConfig) -> None:
    rng = random.Random(seed)
    await AcceptedBatches(config).run([hostile_batch(rng) for _ in range(BATCHES)])


async def test_many_hostile_batches_are_accepted() -> None:
    """The property would say nothing about refused batches."""
    rng = random.Random(1)
    partition = AcceptedBatches()
    await partition.run([hostile_batch(rng) for _ in range(20)])
    assert partition.accepted >= 5
