"""A node's operations during changes of the leader: each takes effect exactly once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1.records_pb2 import NODE_ROLE_BROKER
from ponor_metadata.client.errors import NodeFencedError
from ponor_metadata.nouns import counters
from ponor_rpc.errors import OperationError
from ponor_rpc.methods import SESSION
from ponor_runtime.identity import compose_node_id
from ponor_runtime.network import Connection, ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import wait_until

from services.controller.tests.quorum_world import ADDRESSES, NAMES, ORDINAL, Clients, QuorumWorld

SEEDS = range(int(os.environ.get("PONOR_SEEDS", "6")))
IDS_EACH = 10


@dataclass
class Allocations:
    """Reserves blocks of producer ids continuously, several at a time. A duplicated or lost block
    shows in the counter.
    """

    callers: int = 20
    blocks: list[int] = field(default_factory=list)
    asked: int = 0
    stopped: bool = False
    idle_callers: int = 0
    clients: Clients | None = None

    async def run(self, clients: Clients) -> None:
        self.clients = clients
        await asyncio.gather(*(self._call(clients) for _ in range(self.callers)))

    async def _call(self, clients: Clients) -> None:
        while not self.stopped:
            self.asked += 1
            operation = wire.Operation(allocate_producer_ids=wire.AllocateProducerIds(count=IDS_EACH))
            result = await clients.session.submit(operation)
            granted = result.producer_ids_granted
            assert granted.count == IDS_EACH
            self.blocks.append(granted.first_producer_id)
            await clients.runtime.clock.sleep(clients.runtime.randomness.uniform(0, 0.2))
        self.idle_callers += 1

    async def finish(self) -> None:
        """Wait until every operation is answered."""
        self.stopped = True
        await wait_until(lambda: self.idle_callers == self.callers)

    async def check(self) -> None:
        """Check that each block was reserved once and returned to the node."""
        assert self.clients is not None
        assert len(set(self.blocks)) == len(self.blocks) == self.asked, "a block was granted twice"
        subscription = self.clients.subscription
        # The next block equals the index of the last one that was visible.
        await wait_until(
            lambda: counters.next_value(subscription.image, counters.PRODUCER) > max(self.blocks)
        )
        first = min(self.blocks)
        taken = counters.next_value(subscription.image, counters.PRODUCER) - first
        assert taken == IDS_EACH * self.asked, "an operation took effect twice"


def _world_with_load(seed: int) -> tuple[QuorumWorld, Allocations]:
    world, load = QuorumWorld(seed), Allocations()
    world.node("node", load.run)
    world.start()
    return world, load


async def _more(load: Allocations, count: int) -> None:
    """Wait for some more operations."""
    goal = len(load.blocks) + count
    await wait_until(lambda: len(load.blocks) >= goal)


def test_every_operation_takes_effect_once_when_the_leader_dies() -> None:
    world, load = _world_with_load(1)

    async def story() -> None:
        await _more(load, 100)
        for _ in range(4):
            leader = await world.leader()
            world.controllers[leader].crash(power_loss=True)
            await _more(load, 100)
            world.controllers[leader].start()
            await _more(load, 50)
        await load.finish()
        await load.check()

    world.simulation.run(story())


def test_a_repeat_after_a_lost_answer_gets_the_stored_result() -> None:
    """The operation was committed and its answer lost: the next leader finds the replicated result."""
    world, load = _world_with_load(2)

    async def story() -> None:
        await _more(load, 50)
        for _ in range(3):
            leader = await world.leader()
            world.network.cut(leader, "node")
            await asyncio.sleep(0.3)  # executed, and its answer is lost
            world.controllers[leader].crash()
            world.network.heal()
            await _more(load, 50)
            world.controllers[leader].start()
            await _more(load, 20)
        await load.finish()
        await load.check()

    world.simulation.run(story())


def test_an_isolated_leader_answers_nothing_and_its_nodes_move_on() -> None:
    world, load = _world_with_load(3)

    async def story() -> None:
        await _more(load, 50)
        for _ in range(3):
            leader = await world.leader()
            world.isolate(leader, *(name for name in NAMES if name != leader))
            await _more(load, 100)
            world.network.heal()
            await _more(load, 20)
        await load.finish()
        await load.check()

    world.simulation.run(story())


def test_a_silent_leader_is_left_within_the_session_timeout() -> None:
    """Half-open: only the node cannot reach the leader, and the connection is never reset."""
    world, load = _world_with_load(4)

    async def story() -> None:
        await _more(load, 50)
        leader = await world.leader()
        world.isolate("node", leader)
        await asyncio.sleep(10)
        world.network.heal()
        await _more(load, 100)
        await load.finish()
        await load.check()

    world.simulation.run(story())


def test_a_resumed_leader_of_an_old_term_is_not_followed() -> None:
    world, load = _world_with_load(5)

    async def story() -> None:
        await _more(load, 50)
        for _ in range(3):
            leader = await world.leader()
            world.controllers[leader].pause()
            await asyncio.sleep(5)
            await _more(load, 20)
            world.controllers[leader].resume()
            await _more(load, 50)
        await load.finish()
        await load.check()

    world.simulation.run(story())


@pytest.mark.parametrize("seed", SEEDS)
def test_every_operation_takes_effect_once_under_any_faults(seed: int) -> None:
    world, load = _world_with_load(100 + seed)

    async def story() -> None:
        await _more(load, 20)
        for _ in range(12):
            name = world.chance.choice(NAMES)
            process = world.controllers[name]
            match world.chance.randrange(7):
                case 0 if process.running:
                    process.crash(power_loss=world.chance.random() < 0.5)
                case 1 if process.running and not process.paused:
                    process.pause()
                case 2:
                    world.isolate(name, *world.chance.sample([*(n for n in NAMES if n != name), "node"], 2))
                case 3:
                    world.network.reset_connections("node", name)
                case 4:
                    world.network.cut(name, "node")
                case 5:
                    world.network.abandon_connections(*world.chance.sample(("node", name), 2))
                case _:
                    world.heal()
            await asyncio.sleep(world.chance.uniform(0, 3))
            for each in (*world.controllers.values(), world.simulation.processes["node"]):
                assert each.failure is None, each.failure
        world.heal()
        await load.finish()
        await load.check()

    world.simulation.run(story())


class RawNode:
    """A node that sends individual frames, including those that no client sends."""

    def __init__(self, runtime: Runtime, number: int) -> None:
        self._runtime = runtime
        self._hello = wire.Hello(
            node_id=compose_node_id(ORDINAL, number),
            role=NODE_ROLE_BROKER,
            incarnation=bytes([number]) * 16,
            kafka_host="h",
            kafka_port=1,
        )

    async def connect(self, address: str) -> tuple[Connection, wire.SessionResponse]:
        connection = await self._runtime.network.connect(address, SESSION)
        await connection.send(wire.SessionRequest(hello=self._hello).SerializeToString())
        return connection, wire.SessionResponse.FromString(await connection.receive())

    async def find_leader(self, *, but: str = "") -> tuple[Connection, wire.Welcome, str]:
        """Try the controllers one after the other."""
        for _ in range(100):
            for address in ADDRESSES:
                if address == but:
                    continue
                try:
                    connection, first = await self.connect(address)
                except ConnectionClosedError:
                    continue
                if first.WhichOneof("frame") == "welcome":
                    return connection, first.welcome, address
                assert first.refused.code == error_pb2.ERROR_CODE_NOT_LEADER
            await asyncio.sleep(0.05)
        raise AssertionError("no leader")


async def _ask(connection: Connection, operations: Sequence[wire.Operation]) -> None:
    batch = wire.OperationBatch(first_incomplete_id=1, operations=operations)
    await connection.send(wire.SessionRequest(operations=batch).SerializeToString())


async def _results(connection: Connection, count: int) -> dict[int, wire.OperationResult]:
    results: dict[int, wire.OperationResult] = {}
    while len(results) < count:
        frame = wire.SessionResponse.FromString(await connection.receive())
        for result in frame.results.results:
            results[result.request_id] = result
    return results


def test_a_repeat_at_the_next_leader_gets_the_first_answer_and_another_body_an_error() -> None:
    world = QuorumWorld(6)
    finished = asyncio.Event()

    async def node(runtime: Runtime) -> None:
        raw = RawNode(runtime, 7)
        connection, _, address = await raw.find_leader()
        operations = [
            wire.Operation(request_id=each, allocate_producer_ids=wire.AllocateProducerIds(count=each))
            for each in (1, 2, 3)
        ]
        await _ask(connection, operations)
        first = await _results(connection, 3)
        world.controllers[address.partition(":")[0]].crash()
        connection, _, other = await raw.find_leader()
        assert other != address
        operations[1].allocate_producer_ids.count = 99
        await _ask(connection, operations)
        second = await _results(connection, 3)
        assert (second[1], second[3]) == (first[1], first[3])
        assert second[2].error.code == error_pb2.ERROR_CODE_REQUEST_MISMATCH
        finished.set()

    world.simulation.process("raw", node)

    async def story() -> None:
        world.start()
        await wait_until(finished.is_set)

    world.simulation.run(story())


def test_a_resumed_deposed_leader_sends_no_refusal() -> None:
    """A refusal changes nothing, so no commit proves it: it needs a majority (etcd-io/etcd #20418)."""
    world = QuorumWorld(8)
    finished = asyncio.Event()

    async def node(runtime: Runtime) -> None:
        raw = RawNode(runtime, 7)
        connection, _, address = await raw.find_leader()
        name = address.partition(":")[0]
        sleeper = world.controllers[name]
        sleeper.pause()
        other = RawNode(runtime, 8)
        fresh, _, elsewhere = await other.find_leader(but=address)
        assert elsewhere != address
        create = wire.CreateTopic(name="t", partitions=1, replication_factor=-1)
        await _ask(fresh, [wire.Operation(request_id=1, create_topic=create)])
        topic_id = (await _results(fresh, 1))[1].topic_held.topic_id
        # The old leader has no such topic.
        more = wire.CreatePartitions(topic_id=topic_id, count=2, validate_only=True)
        await _ask(connection, [wire.Operation(request_id=1, create_partitions=more)])
        world.isolate(
            name, *(each for each in NAMES if each != name)
        )  # its isolation did not reach it, and it heard its peers a moment ago
        sleeper.resume()
        try:
            while True:
                frame = wire.SessionResponse.FromString(await connection.receive())
                codes = [each.error.code for each in frame.results.results]
                assert error_pb2.ERROR_CODE_TOPIC_NOT_FOUND not in codes, "an outdated answer"
                if frame.WhichOneof("frame") == "refused":
                    assert frame.refused.code == error_pb2.ERROR_CODE_NOT_LEADER
                    assert frame.refused.leader_address in {"", elsewhere}
                    break
        except ConnectionClosedError:
            pass
        finished.set()

    world.simulation.process("raw", node)

    async def story() -> None:
        world.start()
        await wait_until(finished.is_set)

    world.simulation.run(story())


def test_a_replaced_node_is_fenced_at_the_next_leader() -> None:
    world = QuorumWorld(9)
    fenced = asyncio.Event()
    replaced = asyncio.Event()
    epochs: list[int] = []

    async def old(clients: Clients) -> None:
        epochs.append(clients.session.node_epoch)
        await clients.session.fenced.wait()
        with pytest.raises(NodeFencedError):
            await clients.session.submit(wire.Operation(put_key=wire.PutKey(key="late", value=b"v")))
        fenced.set()

    async def new(clients: Clients) -> None:
        epochs.append(clients.session.node_epoch)
        replaced.set()

    old_process, new_process = world.node("old", old), world.node("new", new)

    async def story() -> None:
        for process in (*world.controllers.values(), old_process):
            process.start()
        await wait_until(lambda: len(epochs) == 1)
        leader = await world.leader()
        rest = [name for name in NAMES if name != leader]
        world.isolate(leader, *rest, "new")
        world.isolate("old", *rest)
        new_process.start()  # registers the same node id where the old process is not connected
        await wait_until(replaced.is_set)
        assert not fenced.is_set()
        world.network.heal()
        await wait_until(fenced.is_set)
        assert epochs == [1, 2]
        assert old_process.failure is None or isinstance(old_process.failure, OperationError)

    world.simulation.run(story())
