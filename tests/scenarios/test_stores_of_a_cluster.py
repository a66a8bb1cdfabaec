"""A broker that meets another store than its cluster's, and a collector that may delete nothing. Shipped services in one simulated world."""

from __future__ import annotations

import asyncio

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ponor_metadata.errors import WrongClusterError
from ponor_metadata.rows import ObjectState
from ponor_metadata.store_marker import PREFIX
from ponor_simulation.object_store import StoreFaults

from tests.scenarios.moving_world import ASK_S_MAX, TOPIC, MovingWorld
from tests.scenarios.test_brokers_without_disks import FAILOVER_S_MAX, World

UPLOAD_S_MAX = 120.0
GARBAGE_S_MAX = 900.0
SILENT_S = 20.0
"""Longer than a broker waits that found the marker at an earlier start."""


def test_a_broker_on_an_empty_store_is_refused_where_only_brokers_ever_registered() -> None:
    """It put a marker there, and recovered a dead broker's log to nothing: acknowledged records were lost."""

    async def story(world: World) -> None:
        cluster, dead = world.cluster, world.leader()
        astray = world.other(dead)
        await world.fill(dead)
        cluster.processes[astray].crash(power_loss=True)
        own, cluster.store = cluster.store, world.simulation.object_store()
        cluster.start(astray)
        await world.until(lambda: not cluster.processes[astray].running)
        failure = cluster.processes[astray].failure
        assert isinstance(failure, WrongClusterError)
        assert "Correct object_store" in str(failure)
        assert not cluster.store.bucket.objects, "the wrong store is not marked"

        cluster.processes[dead].crash(power_loss=True)
        cluster.store = own
        cluster.start(astray)
        assert await world.taken_over(dead) == astray
        await world.holds(astray, 6)
        await world.back(dead)

    world = World(1)
    del world.cluster.processes["gc"]
    world.happen(story)


def test_a_broker_that_began_while_its_store_was_silent_checks_it_before_it_uploads() -> None:
    """Another store answered later: acknowledged records went there, and their write-ahead log was trimmed."""

    async def story(world: MovingWorld) -> None:
        cluster, (name,) = world.cluster, world.cluster.brokers
        await world.until(world.serves_somewhere, FAILOVER_S_MAX)
        assert (await world.produce(name, 2)).error_code == ErrorCode.NONE
        cluster.processes[name].crash()
        own, cluster.store = cluster.store, world.simulation.object_store()
        cluster.store.faults = StoreFaults(down=True)
        cluster.start(name)
        await asyncio.sleep(SILENT_S)
        assert cluster.processes[name].running, "its log is on its disk"
        cluster.store.faults = StoreFaults()
        await world.until(lambda: not cluster.processes[name].running, UPLOAD_S_MAX)
        assert isinstance(cluster.processes[name].failure, WrongClusterError)
        assert not cluster.store.bucket.objects
        cluster.store = own
        cluster.start(name)
        await world.until(world.serves_somewhere, FAILOVER_S_MAX)
        world.forget_client(name)
        found = await world.fetch(name)
        assert (found.error_code, found.high_watermark) == (ErrorCode.NONE, 2)

    MovingWorld(1, brokers=1).tell(story)


def test_a_collector_that_may_delete_nothing_claims_nothing_more() -> None:
    """Its claims kept other collectors from the objects and were written into the controllers' log again and again."""

    async def story(world: MovingWorld) -> None:
        assert world.cluster.store is not None
        objects = world.cluster.store.bucket.objects
        marker = next(key for key in objects if key.startswith(PREFIX) and key.endswith("/marker"))
        kept = objects.pop(marker)
        await leave_garbage(world)
        await world.until(lambda: bool(claimed(world)), GARBAGE_S_MAX)
        first = claimed(world)
        await world.create(TOPIC, 1)
        await leave_garbage(world)
        await asyncio.sleep(GARBAGE_S_MAX)
        assert claimed(world) == first
        objects[marker] = kept
        await world.until(lambda: not garbage(world), GARBAGE_S_MAX)

    MovingWorld(1, brokers=1).tell(story)


async def leave_garbage(world: MovingWorld) -> None:
    """Upload records, and delete their topic."""
    name = world.cluster.brokers[0]
    await world.until(world.serves_somewhere, FAILOVER_S_MAX)
    before = len(garbage(world))
    assert (await world.produce(name, 2)).error_code == ErrorCode.NONE
    await asyncio.sleep(UPLOAD_S_MAX)
    client = await world.client(name)
    request = DeleteTopicsRequest(topics=[DeleteTopicState(TOPIC)], timeout_ms=10_000)
    answer = await client.ask(request, 6, DeleteTopicsResponse, timeout_s=ASK_S_MAX)
    assert answer.responses[0].error_code == ErrorCode.NONE
    await world.until(lambda: len(garbage(world)) > before)


def garbage(world: MovingWorld) -> dict[int, int]:
    """Objects that are to be deleted, and until when each is claimed."""
    assert world.cluster.watch.controller is not None
    rows = world.cluster.watch.controller.image.objects
    return {row.object_id: row.claimed_until_ms for row in rows if row.state is ObjectState.DESTROYED}


def claimed(world: MovingWorld) -> dict[int, int]:
    """Those of them that ever were claimed."""
    return {object_id: until for object_id, until in garbage(world).items() if until}
