"""Brokers with the store of another cluster, or with an older copy of the controllers' log, and a
collector that may delete nothing.

Real services in one simulated world.
"""

from __future__ import annotations

import asyncio
import copy
from pathlib import PurePosixPath

from ponor_broker.dead_node import RescueReport, rescue
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ponor_metadata.client.errors import WrongClusterError
from ponor_metadata.client.store_marker import PREFIX
from ponor_metadata.nouns.nodes import NODES
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_metadata.nouns.streams import STREAMS, STREAMS_OPEN_AT
from ponor_rpc.errors import OperationError
from ponor_runtime.object_store import ObjectStoreUnavailableError
from ponor_runtime.runtime import Runtime
from ponor_simulation.disk_state import DiskState
from ponor_simulation.object_store import StoreFaults
from ponor_simulation.process import SimProcess
from s3stream.settings import StorageSettings

from tests.scenarios.moving_world import ASK_S_MAX, TOPIC, MovingWorld
from tests.scenarios.test_brokers_without_disks import FAILOVER_S_MAX, World

UPLOAD_S_MAX = 120.0
GARBAGE_S_MAX = 900.0
RECOVER_S_MAX = 300.0
SILENT_S = 20.0
"""Longer than the wait of a broker that found the marker at an earlier start."""


def test_a_broker_on_an_empty_store_is_refused_where_only_brokers_ever_registered() -> None:
    """Before, it put a marker there and recovered a dead broker's log as empty: acknowledged
    records were lost.
    """

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


def test_a_broker_started_with_a_silent_store_checks_it_before_it_uploads() -> None:
    """Before, another store answered later: acknowledged records went there, and their write-ahead
    log was trimmed.
    """

    async def story(world: MovingWorld) -> None:
        cluster, (name,) = world.cluster, world.cluster.brokers
        await world.until(world.serves_somewhere, FAILOVER_S_MAX)
        assert (await world.produce(name, 2)).error_code == ErrorCode.NONE
        cluster.processes[name].crash()
        own, cluster.store = cluster.store, world.simulation.object_store()
        await start_while_silent(world, name)
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


def test_a_broker_started_with_a_silent_store_detects_an_older_log_of_the_controllers() -> None:
    """Before, it uploaded under object ids that an older log assigned a second time."""

    async def story(world: MovingWorld) -> None:
        cluster, (name,) = world.cluster, world.cluster.brokers
        older = await with_an_older_copy(world)
        await restore(world, older)
        before = uploaded(world)
        await start_while_silent(world, name)
        await world.until(lambda: not cluster.processes[name].running, UPLOAD_S_MAX)
        failure = cluster.processes[name].failure
        assert isinstance(failure, OperationError)
        assert "older copy" in failure.message
        assert uploaded(world) == before
        cluster.processes[name].failure = None

    world = MovingWorld(1, brokers=1)
    # A live collector would report its record of the log to the controller.
    del world.cluster.processes["gc"]
    world.tell(story)


def test_a_broker_started_with_a_silent_store_uploads_after_the_checks() -> None:
    async def story(world: MovingWorld) -> None:
        (name,) = world.cluster.brokers
        await with_an_older_copy(world)
        before = uploaded(world)
        await start_while_silent(world, name)
        await world.until(lambda: uploaded(world) > before, UPLOAD_S_MAX)

    MovingWorld(1, brokers=1).tell(story)


def test_a_recovery_of_a_dead_broker_on_another_store_is_refused() -> None:
    """Before, it uploaded the dead broker's log there and closed its streams: acknowledged records were
    lost.
    """

    async def story(world: MovingWorld) -> None:
        cluster = world.cluster
        await world.until(world.serves_somewhere, FAILOVER_S_MAX)
        dead = world.leader()
        assert (await world.produce(dead, 2)).error_code == ErrorCode.NONE
        cluster.processes[dead].crash()
        epoch, own = node_epoch(world, dead), cluster.store

        cluster.store = world.simulation.object_store()
        rescuer = Rescuer(world, dead)
        await rescuer.run()
        assert isinstance(rescuer.process.failure, WrongClusterError)
        assert "Correct object_store" in str(rescuer.process.failure)
        assert not cluster.store.bucket.objects
        cluster.store.faults = StoreFaults(down=True)
        await rescuer.run()
        assert isinstance(rescuer.process.failure, ObjectStoreUnavailableError)
        assert open_streams(world, dead)
        assert node_epoch(world, dead) == epoch, "it did not register"

        cluster.store = own
        await rescuer.run()
        assert rescuer.report is not None, rescuer.process.failure
        assert rescuer.report.recovered is not None
        assert rescuer.report.recovered.records > 0
        await world.until(world.serves_somewhere, FAILOVER_S_MAX)
        found = await world.fetch(world.leader())
        assert (world.leader(), found.high_watermark) == (world.other(dead), 2)

    MovingWorld(1, brokers=2).tell(story)


def test_a_recovery_of_a_dead_broker_detects_an_older_log_of_the_controllers() -> None:
    """Before, it registered without the nodes' records in the store, uploaded and closed streams."""

    async def story(world: MovingWorld) -> None:
        (dead,) = world.cluster.brokers
        older = await with_an_older_copy(world)
        await restore(world, older)
        before = uploaded(world)
        rescuer = Rescuer(world, dead)
        await rescuer.run()
        assert isinstance(rescuer.process.failure, OperationError)
        assert "older copy" in rescuer.process.failure.message
        assert uploaded(world) == before
        assert open_streams(world, dead)

    world = MovingWorld(1, brokers=1)
    del world.cluster.processes["gc"]
    world.tell(story)


class Rescuer:
    """`ponor broker recover` with the disk of a dead broker, or without its log if the loss is accepted.

    `report` is the result of the last run.
    """

    def __init__(self, world: MovingWorld, dead: str, *, accept_loss: bool = False) -> None:
        self._world = world
        self._dead = dead
        self._accept_loss = accept_loss
        self.report: RescueReport | None = None
        self.process: SimProcess = world.simulation.process("rescuer", self._main)
        self.process.disk = world.cluster.processes[dead].disk

    async def run(self) -> None:
        """Run the command until it ends."""
        self.report = None
        self.process.start()
        await self._world.until(lambda: not self.process.running, RECOVER_S_MAX)

    async def _main(self, runtime: Runtime) -> None:
        cluster = self._world.cluster
        assert cluster.watch.controller is not None
        assert cluster.store is not None
        row = cluster.watch.controller.image[NODES].get(cluster.node_of(self._dead))
        assert row is not None
        self.report = await rescue(
            runtime,
            StorageSettings(),
            row,
            controllers=cluster.addresses,
            store=cluster.store,
            wal=None if self._accept_loss else PurePosixPath("/broker/wal"),
            accept_loss=self._accept_loss,
            ms_max=60_000,
        )


async def with_an_older_copy(world: MovingWorld) -> DiskState:
    """Upload records twice, acknowledge others, and end the only broker. Return the controller's
    disk between the uploads.
    """
    (name,) = world.cluster.brokers
    await world.until(world.serves_somewhere, FAILOVER_S_MAX)
    assert (await world.produce(name, 2)).error_code == ErrorCode.NONE
    await asyncio.sleep(UPLOAD_S_MAX)
    older = copy.deepcopy(world.cluster.processes["controller"].disk.state)
    for _ in range(3):
        before = uploaded(world)
        assert (await world.produce(name, 2)).error_code == ErrorCode.NONE
        await asyncio.sleep(UPLOAD_S_MAX)
        assert uploaded(world) > before
    assert (await world.produce(name, 2)).error_code == ErrorCode.NONE
    world.cluster.processes[name].crash()
    return older


async def start_while_silent(world: MovingWorld, name: str) -> None:
    """Start a broker while the store does not answer; then let it answer."""
    assert world.cluster.store is not None
    world.cluster.store.faults = StoreFaults(down=True)
    world.cluster.start(name)
    await asyncio.sleep(SILENT_S)
    assert world.cluster.processes[name].running, "its log is on its disk"
    world.cluster.store.faults = StoreFaults()


async def restore(world: MovingWorld, older: DiskState) -> None:
    """Start the controller on an older copy of its disk."""
    cluster = world.cluster
    cluster.processes["controller"].crash(power_loss=True)
    cluster.processes["controller"].disk.state = older
    cluster.watch.digests.clear()
    cluster.watch.leaders.clear()
    cluster.start("controller")
    await world.until(lambda: cluster.has_leader, FAILOVER_S_MAX)


def uploaded(world: MovingWorld) -> set[str]:
    """Keys of objects with data."""
    assert world.cluster.store is not None
    return {key for key in world.cluster.store.bucket.objects if not key.startswith(PREFIX)}


def open_streams(world: MovingWorld, name: str) -> int:
    """Number of streams that a broker holds open, according to the controller."""
    assert world.cluster.watch.controller is not None
    return len(
        world.cluster.watch.controller.image[STREAMS].find(STREAMS_OPEN_AT, world.cluster.node_of(name))
    )


def node_epoch(world: MovingWorld, name: str) -> int:
    """The epoch of a broker's newest registration."""
    assert world.cluster.watch.controller is not None
    row = world.cluster.watch.controller.image[NODES].get(world.cluster.node_of(name))
    assert row is not None
    return row.node_epoch


def test_a_collector_that_may_delete_nothing_stops_claiming() -> None:
    """Before, its claims blocked other collectors and were written into the controllers' log repeatedly."""

    async def story(world: MovingWorld) -> None:
        assert world.cluster.store is not None
        objects = world.cluster.store.bucket.objects
        marker = next(key for key in objects if key.startswith(PREFIX) and key.endswith("/marker"))
        kept = objects.pop(marker)
        await leave_garbage(world)
        await world.until(lambda: bool(claimed(world)), GARBAGE_S_MAX, poll_s=0.1)
        first = claimed(world)
        await world.create(TOPIC, 1)
        await leave_garbage(world)
        await asyncio.sleep(GARBAGE_S_MAX)
        assert claimed(world) == first
        objects[marker] = kept
        await world.until(lambda: not garbage(world), GARBAGE_S_MAX, poll_s=0.1)

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
    """Objects to be deleted, and the end of each claim."""
    assert world.cluster.watch.controller is not None
    rows = world.cluster.watch.controller.image[OBJECTS]
    return {row.object_id: row.claimed_until_ms for row in rows if row.state is ObjectState.DESTROYED}


def claimed(world: MovingWorld) -> dict[int, int]:
    """Objects that were ever claimed."""
    return {object_id: until for object_id, until in garbage(world).items() if until}
