"""Brokers whose write-ahead log is in the object store: one dies and others serve what it had acknowledged; one is told to go and leaves nothing behind.

Shipped brokers and a controller in one simulated world. The protocol of the log itself is proven in libs/s3stream/tests and tests/models; here stands what brokers make of it.
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
    """What is asked of brokers that come and go."""

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
        """Start everything, and let the story happen."""
        self.tell(lambda _: story(self))

    def node(self, name: str) -> NodeRow:
        """A broker as the controller has it."""
        assert self.cluster.watch.controller is not None
        row = self.cluster.watch.controller.image[NODES].get(self.cluster.node_of(name))
        assert row is not None
        return row

    def open_logs(self, name: str) -> list[WalRow]:
        """Logs of a broker that are not closed."""
        assert self.cluster.watch.controller is not None
        node_id = self.cluster.node_of(name)
        return [row for row in self.cluster.watch.controller.image[WALS] if row.node_id == node_id]

    async def fill(self, name: str, batches: int = 3) -> None:
        """Acknowledged records, of now."""
        assert self._runtime is not None
        self.timestamp_ms = self._runtime.clock.wall_ms()
        for _ in range(batches):
            assert (await self.produce(name, 2)).error_code == ErrorCode.NONE

    async def taken_over(self, dead: str) -> str:
        """Wait until somebody else serves what a broker led; who."""
        await self.until(lambda: self.leader() != dead and self.serves_somewhere(), FAILOVER_S_MAX)
        return self.leader()

    async def holds(self, name: str, records: int) -> None:
        """A broker serves just so many records."""
        found = await self.fetch(name)
        assert (found.error_code, found.high_watermark) == (ErrorCode.NONE, records)
        assert await self.end_offset(name) == (ErrorCode.NONE, records, self.row().leader_epoch)

    async def gone(self, name: str) -> None:
        """Wait for a process to end by itself, in order."""
        process = self.cluster.processes[name]
        await wait_until(lambda: not process.running, timeout_s=FAILOVER_S_MAX)
        assert process.finished, process.failure

    async def back(self, name: str) -> None:
        """Start a broker again and wait until it serves."""
        self.cluster.start(name)
        await self.until(lambda: name in self.cluster.serving, FAILOVER_S_MAX)
        self.forget_client(name)


def test_what_a_dead_broker_acknowledged_is_served_by_another() -> None:
    async def story(world: World) -> None:
        dead = world.leader()
        await world.fill(dead)
        (log,) = world.open_logs(dead)
        world.cluster.processes[dead].crash(power_loss=True)
        heir = await world.taken_over(dead)
        await world.holds(heir, 6)
        assert world.open_logs(dead) == []
        await world.fill(heir, 1)
        # It comes back, on a disk that it never used, under a new epoch and with a new log.
        await world.back(dead)
        (again,) = world.open_logs(dead)
        assert again.wal_epoch > log.wal_epoch
        await world.move(dead)
        await world.until(lambda: world.leader() == dead and world.serves_somewhere())
        await world.holds(dead, 8)

    World(1).happen(story)


def test_a_broker_that_is_back_before_it_was_missed_recovers_its_own_log() -> None:
    async def story(world: World) -> None:
        name = world.leader()
        await world.fill(name)
        world.cluster.processes[name].crash(power_loss=True)
        await world.back(name)
        await world.until(world.serves_somewhere)
        await world.holds(world.leader(), 6)
        assert len(world.open_logs(name)) == 1

    World(2, brokers=1).happen(story)


def test_two_of_three_die_one_of_them_while_it_recovers_the_other() -> None:
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
def test_a_zombie_wakes_up_after_it_was_replaced_and_acknowledges_nothing(seed: int) -> None:
    async def story(world: World) -> None:
        zombie = world.leader()
        await world.fill(zombie)
        process = world.cluster.processes[zombie]
        # A request is under way when the process stops, and nobody knows how far it came.
        late = asyncio.ensure_future(world.produce(zombie, 5))
        await asyncio.sleep(0.002 * seed)
        process.pause()
        heir = await world.taken_over(zombie)
        kept = (await world.fetch(heir)).high_watermark
        process.resume()
        await world.until(lambda: not process.running)
        assert isinstance(process.failure, NodeFencedError), process.failure
        await asyncio.wait([late])
        answered = late.exception() is None and late.result().error_code == ErrorCode.NONE
        assert kept == 11 or not answered
        await world.holds(heir, kept)
        await world.back(zombie)

    World(10 + seed).happen(story)


def test_a_store_that_is_away_delays_the_takeover_and_loses_nothing() -> None:
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
        heir = await world.taken_over(dead)
        await world.holds(heir, 6)

    World(4).happen(story)


def test_a_broker_that_is_told_to_stop_leaves_nothing_behind() -> None:
    async def story(world: World) -> None:
        leaving = world.leader()
        await world.fill(leaving)
        world.cluster.stop(leaving)
        await world.gone(leaving)
        heir = world.other(leaving)
        assert world.leader() == heir
        assert world.open_logs(leaving) == []
        assert world.node(leaving).fenced, "nobody looks for it"
        await world.holds(heir, 6)
        assert world.cluster.store is not None
        node_id = world.cluster.node_of(leaving)
        objects = world.cluster.store.bucket.objects
        # What the node saw of the controllers' log stays: the next process of this node id needs it.
        assert not [key for key in objects if f"/{node_id}/" in key and "/seen/" not in key]
        await world.back(leaving)

    World(5).happen(story)


def test_the_last_broker_stops_as_if_it_were_alone_and_closes_its_log() -> None:
    async def story(world: World) -> None:
        last = world.leader()
        other = world.other(last)
        await world.fill(last)
        world.cluster.stop(other)
        await world.gone(other)
        world.cluster.stop(last)
        await world.gone(last)
        assert world.leader() == last, "nobody could take it"
        assert world.open_logs(last) == []
        await world.back(last)
        await world.until(world.serves_somewhere)
        await world.holds(last, 6)
        await world.back(other)

    World(6).happen(story)


def test_when_the_whole_cluster_stops_nothing_is_moved() -> None:
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


def test_a_drain_that_takes_too_long_ends_as_a_stop() -> None:
    """The store is away: nothing can be closed there, and the process must not wait for ever."""

    async def story(world: World) -> None:
        name = world.leader()
        await world.fill(name)
        world.store_of_faults().down = True
        world.cluster.stop(name)
        await world.gone(name)
        world.store_of_faults().down = False
        heir = await world.taken_over(name)
        await world.holds(heir, 6)
        await world.back(name)

    World(8, broker=BrokerSettings(drain_ms_max=3_000)).happen(story)


def test_a_broker_that_a_tool_drains_goes_on_empty_until_it_is_stopped() -> None:
    async def story(world: World) -> None:
        name = world.leader()
        heir = world.other(name)
        await world.fill(name)
        body = SetDrain(node_id=world.cluster.node_of(name), draining=True)
        await world.services[heir]._session.submit(Operation(set_drain=body))
        await world.until(lambda: world.leader() == heir and world.serves_somewhere())
        await asyncio.sleep(5.0)
        assert world.cluster.processes[name].running
        assert (await world.produce(name)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        world.cluster.stop(name)
        await world.gone(name)
        await world.holds(heir, 6)
        await world.back(name)

    World(9).happen(story)


def test_a_broker_that_is_cut_off_serves_nothing_by_the_time_it_is_replaced() -> None:
    """No client of its side of the cut is shown an end of the log that is not the end any more."""

    async def story(world: World) -> None:
        lost = world.leader()
        await world.fill(lost)
        hub = world.simulation.network
        for source, target in (("controller", lost), (lost, "controller")):
            hub.cut(source, target)
        heir = await world.taken_over(lost)
        assert world.cluster.processes[lost].running, "it cannot know"
        await world.fill(heir, 1)
        fetched, produced = await world.fetch(lost), await world.produce(lost)
        refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (fetched.error_code, produced.error_code) == (refused, refused)
        hub.heal()
        await world.until(lambda: not world.cluster.processes[lost].running)
        assert isinstance(world.cluster.processes[lost].failure, NodeFencedError)
        await world.holds(heir, 8)
        await world.back(lost)

    World(14).happen(story)


def test_the_place_of_the_log_changes_only_when_nothing_is_in_it() -> None:
    """A refusal that a person can do something about: one line and no fail-stop."""

    async def story(world: World) -> None:
        name = world.leader()
        process = world.cluster.processes[name]
        await world.fill(name)
        process.crash()
        world.cluster.wal = WalKind.OBJECT
        world.cluster.start(name)
        await world.until(lambda: not process.running)
        assert isinstance(process.failure, OperationError)
        assert "start it again with that log" in str(process.failure)
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
