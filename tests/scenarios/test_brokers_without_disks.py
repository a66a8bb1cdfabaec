"""Brokers with object WALs: other brokers serve the acknowledged records of a dead one, and a
stopping broker leaves no data in its log.

Real brokers and a controller in one simulated world. The tests in libs/s3stream/tests and
tests/models cover the protocol of the log itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from ponor.controller.v1.session_service_pb2 import Operation, SetDrain
from ponor_broker.settings import BrokerSettings
from ponor_controller.settings import ControllerSettings
from ponor_kafka.errors import ErrorCode
from ponor_metadata.client.cluster_client import ClusterClient
from ponor_metadata.client.errors import NodeFencedError
from ponor_metadata.nouns.nodes import NODES, NodeRow, WalKind
from ponor_metadata.nouns.wals import WALS, WalRow
from ponor_rpc.errors import OperationError
from ponor_simulation.process import wait_until

from tests.scenarios.moving_world import MovingWorld

CONTROLLER = ControllerSettings(session_timeout_ms=2_000, session_reset_grace_ms=200)
FAILOVER_S_MAX = 30.0


class World(MovingWorld):
    """A cluster whose brokers are stopped, killed and restarted."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 2,
        wal: WalKind = WalKind.OBJECT,
        broker: BrokerSettings | None = None,
    ) -> None:
        super().__init__(seed, brokers=brokers, wal=wal, controller=CONTROLLER, broker=broker)

    def happen(self, story: Callable[[World], Awaitable[None]]) -> None:
        """Start everything and run the scenario."""
        self.tell(lambda _: story(self))

    def node(self, name: str) -> NodeRow:
        """The controller's row of a broker."""
        assert self.cluster.watch.controller is not None
        row = self.cluster.watch.controller.image[NODES].get(self.cluster.node_of(name))
        assert row is not None
        return row

    def open_logs(self, name: str) -> list[WalRow]:
        """A broker's logs that are not closed."""
        assert self.cluster.watch.controller is not None
        node_id = self.cluster.node_of(name)
        return [row for row in self.cluster.watch.controller.image[WALS] if row.node_id == node_id]

    async def fill(self, name: str, batches: int = 3) -> None:
        """Produce records with the current timestamp; they are acknowledged."""
        assert self._runtime is not None
        self.timestamp_ms = self._runtime.clock.wall_ms()
        for _ in range(batches):
            assert (await self.produce(name, 2)).error_code == ErrorCode.NONE

    async def taken_over(self, dead: str) -> str:
        """Wait until another broker serves a broker's partitions; return its name."""
        await self.until(lambda: self.leader() != dead and self.serves_somewhere(), FAILOVER_S_MAX)
        return self.leader()

    async def holds(self, name: str, records: int) -> None:
        """Wait until a broker serves exactly this many records."""
        found = await self.fetch(name)
        assert (found.error_code, found.high_watermark) == (ErrorCode.NONE, records)
        assert await self.end_offset(name) == (ErrorCode.NONE, records, self.row().leader_epoch)

    async def gone(self, name: str) -> None:
        """Wait until a process ends normally."""
        process = self.cluster.processes[name]
        await wait_until(lambda: not process.running, timeout_s=FAILOVER_S_MAX)
        assert process.finished, process.failure

    async def back(self, name: str) -> None:
        """Restart a broker and wait until it serves."""
        self.cluster.start(name)
        await self.until(lambda: name in self.cluster.serving, FAILOVER_S_MAX)
        self.forget_client(name)


def test_another_broker_serves_the_acknowledged_records_of_a_dead_one() -> None:
    async def story(world: World) -> None:
        dead = world.leader()
        await world.fill(dead)
        (log,) = world.open_logs(dead)
        world.cluster.processes[dead].crash(power_loss=True)
        successor = await world.taken_over(dead)
        await world.holds(successor, 6)
        assert world.open_logs(dead) == []
        await world.fill(successor, 1)
        # It returns with an empty disk, under a new epoch and with a new log.
        await world.back(dead)
        (again,) = world.open_logs(dead)
        assert again.wal_epoch > log.wal_epoch
        await world.move(dead)
        await world.until(lambda: world.leader() == dead and world.serves_somewhere())
        await world.holds(dead, 8)

    World(1).happen(story)


def test_a_broker_that_restarts_before_it_is_suspected_recovers_its_own_log() -> None:
    async def story(world: World) -> None:
        name = world.leader()
        await world.fill(name)
        world.cluster.processes[name].crash(power_loss=True)
        await world.back(name)
        await world.until(world.serves_somewhere)
        await world.holds(world.leader(), 6)
        assert len(world.open_logs(name)) == 1

    World(2, brokers=1).happen(story)


def test_a_recoverer_that_dies_is_replaced() -> None:
    async def story(world: World) -> None:
        first = world.leader()
        await world.fill(first)
        world.cluster.processes[first].crash()
        await world.until(lambda: any(row.token for row in world.open_logs(first)))
        (log,) = world.open_logs(first)
        second = world.cluster.broker_of(log.recoverer_id)
        assert second is not None
        world.cluster.processes[second].crash()
        third = next(name for name in world.cluster.brokers if name not in {first, second})
        await world.until(lambda: world.leader() == third and world.serves_somewhere(), FAILOVER_S_MAX)
        await world.holds(third, 6)
        await world.until(lambda: not world.open_logs(first) and not world.open_logs(second))

    World(3, brokers=3).happen(story)


@pytest.mark.parametrize("seed", range(4))
def test_a_zombie_that_was_replaced_acknowledges_nothing(seed: int) -> None:
    async def story(world: World) -> None:
        zombie = world.leader()
        await world.fill(zombie)
        process = world.cluster.processes[zombie]
        # A request is in progress when the process stops; its state is unknown.
        late = asyncio.ensure_future(world.produce(zombie, 5))
        await asyncio.sleep(0.002 * seed)
        process.pause()
        successor = await world.taken_over(zombie)
        kept = (await world.fetch(successor)).high_watermark
        process.resume()
        await world.until(lambda: not process.running)
        assert isinstance(process.failure, NodeFencedError), process.failure
        await asyncio.wait([late])
        answered = late.exception() is None and late.result().error_code == ErrorCode.NONE
        assert kept == 11 or not answered
        await world.holds(successor, kept)
        await world.back(zombie)

    World(10 + seed).happen(story)


def test_an_unavailable_store_delays_the_takeover_without_data_loss() -> None:
    async def story(world: World) -> None:
        dead = world.leader()
        await world.fill(dead)
        faults = world.store_of_faults()
        world.cluster.processes[dead].crash()
        faults.down = True
        await world.until(lambda: world.leader() != dead)
        await asyncio.sleep(5.0)
        assert not world.serves_somewhere()
        assert len(world.open_logs(dead)) == 1
        faults.down = False
        successor = await world.taken_over(dead)
        await world.holds(successor, 6)

    World(4).happen(story)


def test_a_stopping_broker_leaves_no_data_in_its_log() -> None:
    async def story(world: World) -> None:
        leaving = world.leader()
        await world.fill(leaving)
        world.cluster.stop(leaving)
        await world.gone(leaving)
        successor = world.other(leaving)
        assert world.leader() == successor
        assert world.open_logs(leaving) == []
        assert world.node(leaving).fenced, "no failover starts for it"
        await world.holds(successor, 6)
        assert world.cluster.store is not None
        node_id = world.cluster.node_of(leaving)
        objects = world.cluster.store.bucket.objects
        # The node's record of the controllers' log stays, because the next process of this node id needs it.
        assert not [key for key in objects if f"/{node_id}/" in key and "/seen/" not in key]
        await world.back(leaving)

    World(5).happen(story)


def test_the_last_broker_stops_without_a_drain_and_closes_its_log() -> None:
    async def story(world: World) -> None:
        last = world.leader()
        other = world.other(last)
        await world.fill(last)
        world.cluster.stop(other)
        await world.gone(other)
        world.cluster.stop(last)
        await world.gone(last)
        assert world.leader() == last, "no broker could take it"
        assert world.open_logs(last) == []
        await world.back(last)
        await world.until(world.serves_somewhere)
        await world.holds(last, 6)
        await world.back(other)

    World(6).happen(story)


def test_a_stop_of_the_whole_cluster_moves_no_partition() -> None:
    async def story(world: World) -> None:
        name = world.leader()
        await world.fill(name)
        assert world._runtime is not None
        client = ClusterClient(world._runtime.network, world._runtime.clock, world.cluster.addresses)
        await client.announce_stop(60_000, timeout_s=10)
        for each in world.cluster.brokers:
            world.cluster.stop(each)
        for each in world.cluster.brokers:
            await world.gone(each)
            assert world.open_logs(each) == []
        assert world.leader() == name
        for each in world.cluster.brokers:
            await world.back(each)
        await world.until(world.serves_somewhere)
        await world.holds(name, 6)

    World(7).happen(story)


def test_a_drain_that_times_out_ends_as_a_stop() -> None:
    """The store is unavailable, so streams cannot be closed, and the process must not wait without limit."""

    async def story(world: World) -> None:
        name = world.leader()
        await world.fill(name)
        world.store_of_faults().down = True
        world.cluster.stop(name)
        await world.gone(name)
        world.store_of_faults().down = False
        successor = await world.taken_over(name)
        await world.holds(successor, 6)
        await world.back(name)

    World(8, broker=BrokerSettings(drain_ms_max=3_000)).happen(story)


def test_a_broker_drained_by_a_tool_runs_without_partitions_until_it_is_stopped() -> None:
    async def story(world: World) -> None:
        name = world.leader()
        successor = world.other(name)
        await world.fill(name)
        body = SetDrain(node_id=world.cluster.node_of(name), draining=True)
        await world.services[successor]._session.submit(Operation(set_drain=body))
        await world.until(lambda: world.leader() == successor and world.serves_somewhere())
        await asyncio.sleep(5.0)
        assert world.cluster.processes[name].running
        assert (await world.produce(name)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        world.cluster.stop(name)
        await world.gone(name)
        await world.holds(successor, 6)
        await world.back(name)

    World(9).happen(story)


def test_an_isolated_broker_serves_nothing_when_it_is_replaced() -> None:
    """A client on its side of the cut must not see an outdated end of the log."""

    async def story(world: World) -> None:
        lost = world.leader()
        await world.fill(lost)
        hub = world.simulation.network
        for source, target in (("controller", lost), (lost, "controller")):
            hub.cut(source, target)
        successor = await world.taken_over(lost)
        assert world.cluster.processes[lost].running, "the fence did not reach it"
        await world.fill(successor, 1)
        fetched, produced = await world.fetch(lost), await world.produce(lost)
        refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (fetched.error_code, produced.error_code) == (refused, refused)
        hub.heal()
        await world.until(lambda: not world.cluster.processes[lost].running)
        assert isinstance(world.cluster.processes[lost].failure, NodeFencedError)
        await world.holds(successor, 8)
        await world.back(lost)

    World(14).happen(story)


def test_a_broker_changes_the_place_of_its_log_only_when_the_log_is_empty() -> None:
    """The refusal is one line for the operator and not a fail-stop."""

    async def story(world: World) -> None:
        name = world.leader()
        process = world.cluster.processes[name]
        await world.fill(name)
        process.crash()
        world.cluster.wal = WalKind.OBJECT
        world.cluster.start(name)
        await world.until(lambda: not process.running)
        assert isinstance(process.failure, OperationError)
        assert "start the node with that log" in str(process.failure)
        world.cluster.wal = WalKind.FILE
        await world.back(name)
        world.cluster.stop(name)
        await world.gone(name)
        world.cluster.wal = WalKind.OBJECT
        await world.back(name)
        await world.until(world.serves_somewhere)
        await world.holds(name, 6)
        assert len(world.open_logs(name)) == 1

    World(15, brokers=1, wal=WalKind.FILE).happen(story)
