"""Partitions that their leader cannot open for a while, or not at this epoch: they are opened
eventually, and moving them fences no broker.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_broker.partitions.handoff.owned_streams import stream_tags
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.settings import BrokerSettings
from ponor_kafka.errors import ErrorCode
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.nodes import WalKind
from ponor_metadata.nouns.streams import StreamRow
from ponor_runtime.identity import StreamEpoch
from s3stream.errors import StorageFailedError

from tests.scenarios.moving_world import MovingWorld
from tests.scenarios.test_brokers_without_disks import World

UPLOADS = BrokerSettings(storage=replace(BrokerSettings().storage, upload_interval_ms=2_000))
LONGER_THAN_A_MOVE_MAY_TAKE_S = 60
SERVED_S_MAX = 120.0


def streams_of(world: MovingWorld) -> list[StreamRow]:
    """The controller's rows of the partition's streams."""
    assert world.cluster.watch.controller is not None
    image = world.cluster.watch.controller.image
    return list(Topics(lambda: image).streams((world.topic_id, 0)))


def is_opened_by_leader(world: MovingWorld) -> bool:
    node_id = world.cluster.node_of(world.leader())
    return all(row.open and row.node_id == node_id for row in streams_of(world))


def session_of(world: MovingWorld, name: str) -> SessionClient:
    return world.services[name]._session


async def make_unknown_stream(world: MovingWorld, *, is_opened: bool) -> int:
    """State after an attempt that failed between the controller's answer and the log meta."""
    name, row = world.leader(), world.row()
    tags = {"topic": row.topic_id.hex(), "partition": "0", "kind": "time"}
    session = session_of(world, name)
    created = await session.submit(
        wire.Operation(create_streams=wire.CreateStreams(streams=[wire.StreamTags(tags=tags)]))
    )
    (stream_id,) = created.streams_created.stream_ids
    if is_opened:
        opening = wire.OpenStream(stream_id=stream_id, stream_epoch=row.leader_epoch)
        await session.submit(wire.Operation(open_streams=wire.OpenStreams(streams=[opening])))
    return stream_id


@pytest.mark.parametrize("is_opened", [True, False])
def test_a_stream_without_a_log_meta_entry_is_deleted_and_a_late_failure_is_harmless(is_opened: bool) -> None:
    async def story(world: World) -> None:
        dead = world.leader()
        await world.fill(dead, 5)
        unknown = await make_unknown_stream(world, is_opened=is_opened)
        world.cluster.processes[dead].crash(power_loss=True)
        await world.until(lambda: world.leader() != dead and is_opened_by_leader_but(world, unknown), 30)
        world.store_of_faults().down = True  # the attempt fails after it opened everything
        await asyncio.sleep(LONGER_THAN_A_MOVE_MAY_TAKE_S)
        world.store_of_faults().down = False
        await world.until(world.serves_somewhere, SERVED_S_MAX)
        await world.until(lambda: unknown not in [row.stream_id for row in streams_of(world)], SERVED_S_MAX)
        await world.holds(world.leader(), 10)

    World(5, broker=UPLOADS).happen(story)


def is_opened_by_leader_but(world: MovingWorld, unknown: int) -> bool:
    node_id = world.cluster.node_of(world.leader())
    return all(row.open and row.node_id == node_id for row in streams_of(world) if row.stream_id != unknown)


def test_a_stream_closed_at_the_present_epoch_is_opened_at_a_new_one() -> None:
    """A partition with a failed append closes its streams; they can only be reopened at another epoch."""

    async def story(world: MovingWorld) -> None:
        name, epoch = world.leader(), world.row().leader_epoch
        assert (await world.produce(name, 3)).error_code == ErrorCode.NONE
        services = world.services[name]
        services.partitions.find(world.topic_id, 0)._fail(StorageFailedError("told by the story"))
        services.partitions.notice_failures()
        await world.until(lambda: world.row().leader_epoch > epoch and world.serves_somewhere(), SERVED_S_MAX)
        assert world.leader() == name
        assert (await world.fetch(name)).high_watermark == 3

    MovingWorld(6, wal=WalKind.OBJECT).tell(story)


def test_a_move_of_an_unopened_partition_ends_and_its_leader_continues() -> None:
    """The store is unavailable after the new leader has opened the streams: it closes them, and the
    target opens them.
    """

    async def story(world: World) -> None:
        dead = world.leader()
        await world.fill(dead, 20)
        world.cluster.processes[dead].crash(power_loss=True)
        await world.until(lambda: world.leader() != dead and is_opened_by_leader(world), 30)
        source = world.leader()
        target = next(name for name in world.cluster.brokers if name not in (dead, source))
        world.store_of_faults().down = True
        assert await world.move(target, by=target) == [0]
        await world.until(lambda: world.leader() == target and world.moves() == 0, 30)
        await asyncio.sleep(LONGER_THAN_A_MOVE_MAY_TAKE_S)
        world.store_of_faults().down = False
        assert world.cluster.processes[source].running
        await world.until(world.serves_somewhere, SERVED_S_MAX)
        await world.holds(world.leader(), 40)

    World(7, brokers=3, broker=UPLOADS).happen(story)


def test_a_move_of_a_partition_whose_log_is_being_recovered_is_cancelled() -> None:
    async def story(world: World) -> None:
        dead = world.leader()
        await world.fill(dead, 20)
        world.cluster.processes[dead].crash(power_loss=True)
        world.store_of_faults().down = True
        await world.until(lambda: world.leader() != dead, 30)
        source = world.leader()
        target = next(name for name in world.cluster.brokers if name not in (dead, source))
        assert await world.move(target, by=target) == [0]
        await asyncio.sleep(LONGER_THAN_A_MOVE_MAY_TAKE_S)
        assert world.cluster.processes[source].running
        assert world.moves() == 0
        world.store_of_faults().down = False
        await world.until(world.serves_somewhere, SERVED_S_MAX)
        await world.holds(world.leader(), 40)

    World(7, brokers=3, broker=UPLOADS).happen(story)


def test_a_stream_unknown_to_its_partition_is_closed_with_it() -> None:
    """The broker holds it open, so it is closed with the move. When the partition moves back, it is
    opened again.
    """

    async def story(world: MovingWorld) -> None:
        source = world.leader()
        target = world.other(source)
        assert (await world.produce(source, 2)).error_code == ErrorCode.NONE
        streams = world.services[source].partitions.source._streams
        identity = world.services[source].partitions.find(world.topic_id, 0).identity
        (unknown,) = await streams.create_streams([stream_tags(identity, "time")])
        await streams.open_streams([(unknown, StreamEpoch(world.row().leader_epoch))])
        assert await world.move(target) == [0]
        await world.until(lambda: world.leader() == target and world.serves_somewhere())
        await world.until(lambda: streams.held(unknown) is None)
        assert await world.move(source) == [0]
        await world.until(lambda: world.leader() == source and world.serves_somewhere())
        assert world.cluster.processes[source].running
        assert (await world.fetch(source)).high_watermark == 2

    MovingWorld(8, wal=WalKind.OBJECT).tell(story)


def test_a_second_move_of_a_partition_whose_log_is_being_recovered_is_harmless() -> None:
    """The first move is cancelled by its author, and another one begins before the first would time out."""

    async def story(world: World) -> None:
        dead = world.leader()
        await world.fill(dead, 20)
        world.cluster.processes[dead].crash(power_loss=True)
        world.store_of_faults().down = True
        await world.until(lambda: world.leader() != dead, 30)
        source = world.leader()
        target = next(name for name in world.cluster.brokers if name not in (dead, source))
        assert await world.move(target, by=target) == [0]
        await asyncio.sleep(1)
        assert await world.move(None, by=target) == [0]
        await asyncio.sleep(1)
        assert await world.move(target, by=target) == [0]
        await asyncio.sleep(LONGER_THAN_A_MOVE_MAY_TAKE_S)
        assert world.cluster.processes[source].running
        assert world.moves() == 0
        world.store_of_faults().down = False
        await world.until(world.serves_somewhere, SERVED_S_MAX)
        await world.holds(world.leader(), 40)

    World(7, brokers=3, broker=UPLOADS).happen(story)


def test_a_move_back_while_the_target_still_opens_fences_no_broker() -> None:
    async def story(world: MovingWorld) -> None:
        source = world.leader()
        target = world.other(source)
        assert (await world.produce(source, 2)).error_code == ErrorCode.NONE
        assert await world.move(target) == [0]
        await world.until(lambda: world.leader() == target)
        world.store_of_faults().down = True
        assert await world.move(source, by=source) == [0]
        await asyncio.sleep(LONGER_THAN_A_MOVE_MAY_TAKE_S)
        assert all(world.cluster.processes[name].running for name in world.cluster.brokers)
        assert world.moves() == 0
        world.store_of_faults().down = False
        await world.until(world.serves_somewhere, SERVED_S_MAX)
        assert (await world.fetch(world.leader())).high_watermark == 2

    MovingWorld(4, wal=WalKind.OBJECT).tell(story)
