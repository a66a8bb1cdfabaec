"""Leaders in Metadata during the recovery of a dead broker's log and during a move, and records
sent with acks=0 at these times.
"""

from __future__ import annotations

import asyncio

import pytest
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from ponor_metadata.nouns.nodes import WalKind

from tests.scenarios.moving_world import ASK_S_MAX, TOPIC, MovingWorld
from tests.scenarios.test_brokers_without_disks import World
from tests.scenarios.test_new_topics_serve import leaders
from tests.scenarios.test_silent_producers import SilentProducer, stored_values

RECOVERY_S = 20.0
"""Longer than requests with acks=0 wait at the new leader."""


async def described(world: MovingWorld, by: str) -> tuple[int, str | None]:
    """DescribeTopicPartitions of the topic's first partition: error and leader."""
    client = await world.client(by)
    request = DescribeTopicPartitionsRequest([TopicRequest(TOPIC)], 100, None)
    answer = await client.ask(request, 0, DescribeTopicPartitionsResponse, timeout_s=ASK_S_MAX)
    one = answer.topics[0].partitions[0]
    return one.error_code, world.cluster.broker_of(one.leader_id)


@pytest.mark.parametrize("seed", [31, 32])
def test_no_leader_is_named_before_the_dead_leaders_log_is_recovered(
    seed: int,
) -> None:
    async def story(world: World) -> None:
        dead = world.leader()
        await world.fill(dead)
        world.cluster.processes[dead].crash()
        world.store_of_faults().down = True
        await world.until(lambda: world.leader() != dead)
        alive = [name for name in world.cluster.brokers if name != dead]
        await world.until(
            lambda: all(world.image_of(name).index == world.committed_index() for name in alive)
        )
        silent = SilentProducer(world)
        sending = asyncio.ensure_future(silent.run())
        for _ in range(int(RECOVERY_S)):
            for name in alive:
                assert await leaders(world, TOPIC, name) == {}
                assert await described(world, name) == (ErrorCode.LEADER_NOT_AVAILABLE, None)
            await asyncio.sleep(1)
        world.store_of_faults().down = False
        successor = await world.taken_over(dead)
        await world.until(lambda: bool(silent.connections))
        assert await leaders(world, TOPIC, alive[0]) == {0: successor}
        assert await described(world, alive[0]) == (ErrorCode.NONE, successor)
        silent.stopping = True
        await sending
        assert [connection.closed_at_s for connection in silent.connections] == [None]
        silent.check(
            [value for value in await stored_values(world, successor) if value.startswith(b"silent")]
        )

    World(seed, brokers=3).happen(story)


@pytest.mark.parametrize("wal", WalKind)
def test_a_leader_is_named_during_the_whole_move(wal: WalKind) -> None:
    async def story(world: MovingWorld) -> None:
        stopping = asyncio.Event()

        async def look(by: str) -> int:
            looks = 0
            while not stopping.is_set():
                assert await leaders(world, TOPIC, by) != {}
                looks += 1
            return looks

        looking = [asyncio.ensure_future(look(name)) for name in world.cluster.brokers]
        asked = world.cluster.brokers[0]
        for _ in range(5):
            target = world.other(world.leader())
            world.forget_client(asked)  # a separate connection, because the queries continue on theirs
            assert await world.move(target) == [ErrorCode.NONE]
            await world.until(lambda: world.moves() == 0 and world.serves_somewhere())
            assert world.leader() == target
        stopping.set()
        assert min(await asyncio.gather(*looking)) > 100

    MovingWorld(33, wal=wal).tell(story)
