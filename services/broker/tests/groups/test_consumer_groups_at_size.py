"""A consumer group with many members: computed in steps, installed in parts, restored in steps."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from ponor_broker.groups.consumer.assignment import plain
from ponor_broker.groups.consumer.events import HeartbeatRequest
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC

MEMBERS = 600
PARTITIONS = 1_200


async def test_a_large_group_reaches_its_target(world_type: Any) -> None:
    world = world_type(GroupSettings(offsets_topic_partitions=1))
    world.topics = {"t": (UUID(int=1), PARTITIONS), OFFSETS_TOPIC: (UUID(int=99), 1)}
    await world.start()

    async def beat(number: int, epoch: int, owned: Any, *, joins: bool = False) -> Any:
        request = HeartbeatRequest(
            f"m{number}",
            epoch,
            rebalance_timeout_ms=60_000 if joins else None,
            topics=frozenset({"t"}) if joins else None,
            owned=owned,
        )
        answer = await world.coordinator.consumer_heartbeat("g", request)
        assert answer.error is ErrorCode.NONE, answer
        return answer

    joined = await asyncio.gather(*(beat(number, 0, {}, joins=True) for number in range(MEMBERS)))
    assert min(answer.member_epoch for answer in joined) >= 1
    epochs = [answer.member_epoch for answer in joined]
    owned = [answer.assignment or {} for answer in joined]
    for _ in range(6):
        await world.clock.pass_ms(5_000)
        for number in range(MEMBERS):
            answer = await beat(number, epochs[number], owned[number])
            epochs[number] = answer.member_epoch
            if answer.assignment is not None:
                owned[number] = answer.assignment
    contents = world.coordinator.consumer_group("g").contents
    assert {sum(map(len, each.values())) for each in owned} == {PARTITIONS // MEMBERS}
    assert contents.all_reached_target
    contents.validate()
    size_bytes = contents.size_bytes
    await world.kill()
    await world.start()
    while not world.coordinator.shards.is_whole:
        await world.clock.settle()
    restored = world.coordinator.consumer_group("g").contents
    assert restored.size_bytes == size_bytes
    assert [plain(restored.currents[f"m{n}"].assigned) for n in range(MEMBERS)] == owned
    await world.coordinator.close()
    assert world.failures == []
