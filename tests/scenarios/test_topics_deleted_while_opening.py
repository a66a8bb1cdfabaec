"""Topics that are deleted while brokers open their partitions leave nothing behind."""

from __future__ import annotations

import asyncio

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ponor_kafka.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import WalKind
from ponor_metadata.nouns.streams import STREAMS
from ponor_metadata.nouns.topics import TOPICS

from tests.scenarios.moving_world import MovingWorld

ROUNDS = 30
PARTITIONS = 8
SETTLED_S = 30


async def _create_and_delete(world: MovingWorld, name: str, pause_s: float) -> None:
    client = await world.client(world.cluster.brokers[0])
    created = await client.ask(
        CreateTopicsRequest(
            topics=[CreatableTopic(name, num_partitions=PARTITIONS, replication_factor=-1)], timeout_ms=10_000
        ),
        7,
        CreateTopicsResponse,
        timeout_s=60.0,
    )
    assert created.topics[0].error_code == ErrorCode.NONE
    await asyncio.sleep(pause_s)
    deleted = await client.ask(
        DeleteTopicsRequest(topics=[DeleteTopicState(name)], timeout_ms=10_000),
        6,
        DeleteTopicsResponse,
        timeout_s=60.0,
    )
    assert deleted.responses[0].error_code == ErrorCode.NONE


async def _churn(world: MovingWorld) -> None:
    """Delete each topic at another time during its opening."""
    for number in range(ROUNDS):
        await _create_and_delete(world, f"short-lived-{number}", 0.0002 * number)


def _left(world: MovingWorld) -> list[str]:
    """Streams and keys of deleted topics."""
    assert world.cluster.watch.controller is not None
    image = world.cluster.watch.controller.image
    topics = {row.topic_id.hex() for row in image[TOPICS]}
    left = [f"stream {row.stream_id}" for row in image[STREAMS] if row.tags.get("topic") not in topics]
    left += [row.key for row in image[KEYS] if row.key.split("/")[1] not in topics]
    return left


def test_no_stream_and_no_key_of_a_deleted_topic_stays() -> None:
    async def story(world: MovingWorld) -> None:
        await _churn(world)
        await asyncio.sleep(SETTLED_S)
        assert _left(world) == []

    MovingWorld(3, brokers=2, wal=WalKind.OBJECT).tell(story)


def test_a_broker_that_opened_deleted_topics_stops_normally() -> None:
    async def story(world: MovingWorld) -> None:
        await _churn(world)
        await asyncio.sleep(SETTLED_S)
        name = world.cluster.brokers[1]
        world.cluster.stop(name)
        await world.until(lambda: not world.cluster.processes[name].running, 10.0)
        assert world.cluster.processes[name].failure is None

    MovingWorld(3, brokers=2, wal=WalKind.OBJECT).tell(story)
