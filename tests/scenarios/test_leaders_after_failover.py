"""Whom Metadata names while the log of a dead broker is recovered, and while a partition moves; and what becomes of records that are sent without acknowledgement then."""

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
"""Longer than requests without acknowledgement wait at the new leader."""


async def described(world: MovingWorld, by: str) -> tuple[int, str | None]:
    """What DescribeTopicPartitions tells of the topic's first partition: the error, and who leads."""
    client = await world.client(by)
    request = DescribeTopicPartitionsRequest([TopicRequest(TOPIC)], 100, None)
    answer = await client.ask(request, 0, DescribeTopicPartitionsResponse, timeout_s=ASK_S_MAX)
    one = answer.topics[0].partitions[0]
    return one.error_code, world.cluster.broker_of(one.leader_id)


@pytest.mark.parametrize("seed", [31, 32])
def test_nobody_is_named_before_the_log_of_the_dead_leader_is_recovered_and_nothing_is_lost(
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
        heir = await world.taken_over(dead)
        await world.until(lambda: bool(silent.connections))
        assert await leaders(world, TOPIC, alive[0]) == {0: heir}
        assert await described(world, alive[0]) == (ErrorCode.NONE, heir)
        silent.stopping = True
        await sending
        assert [connection.closed_at_s for connection in silent.connections] == [None]
        silent.check([value for value in await stored_values(world, heir) if value.startswith(b"silent")])

    World(seed, brokers=3).happen(story)


@pytest.mark.parametrize("wal", WalKind)
def test_somebody_is_named_at_any_time_of_a_move(wal: WalKind) -> None:
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
            world.forget_client(asked)  # a connection of its own: the looks go on over theirs
            assert await world.move(target) == [ErrorCode.NONE]
            await world.until(lambda: world.moves() == 0 and world.serves_somewhere())
            assert world.leader() == target
        stopping.set()
        assert min(await asyncio.gather(*looking)) > 100

    MovingWorld(33, wal=wal).tell(story)
