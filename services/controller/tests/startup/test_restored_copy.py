"""A controller's directory restored from a copy has an older log. Nodes that have seen the newer
log are refused, so nothing is assigned twice.
"""

from __future__ import annotations

import asyncio
import copy
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.kernel.leading import LeaderTerm
from ponor_controller.server.sessions.lost_history import lost_history
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.seen_history import SeenHistory, Witness, parse_key, read_seen
from ponor_metadata.client.session import SessionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.errors import OperationError
from ponor_rpc.methods import SESSION
from ponor_runtime.identity import NodeId, compose_node_id
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import wait_until

from services.controller.tests.quorum_rig import ORDINAL, QuorumRig

NAMESPACE = "namespace"
NODE = compose_node_id(ORDINAL, 0)
LEADER_TERM = LeaderTerm(term=5, first_index=100, nonce=b"n" * 8)
TERMS = {98: 3, 99: 4, 100: 5}


def _hello(incarnation: int, term: int, index: int, nonce: bytes = LEADER_TERM.nonce) -> wire.Hello:
    return wire.Hello(node_id=NODE, seen=[SeenHistory(incarnation, term, index, nonce).message()])


@pytest.mark.parametrize(
    ("hello", "is_lost"),
    [
        (_hello(1, 5, 120), False),  # the same leader
        (_hello(1, 5, 90, b"o" * 8), True),  # another history that reached the same term
        (_hello(1, 4, 99), False),  # an earlier leader
        (_hello(1, 4, 100), True),  # an earlier leader committed an entry that this log overwrote
        (_hello(1, 3, 98), False),  # the seen entry
        (_hello(1, 3, 99), True),  # another entry at the index of the seen one
        (_hello(1, 3, 50), False),  # the entry is not in memory anymore
        (_hello(1, 6, 1), True),  # a later leader
        (_hello(0, 9, 999), False),  # a history that a forced recovery dropped
        (_hello(2, 1, 1), True),  # a later forced recovery
    ],
)
def test_which_logs_are_older_copies(hello: wire.Hello, is_lost: bool) -> None:
    assert bool(lost_history(hello, LEADER_TERM, 1, TERMS.get)) is is_lost


def test_a_record_of_the_seen_log_survives_encoding() -> None:
    seen = SeenHistory(1, 2, 3, bytes(range(8)))
    assert parse_key(seen.key(NAMESPACE, NodeId(65_536))) == seen
    assert parse_key("clusters/namespace/marker") is None


@dataclass
class Worker:
    """A node that puts keys, and records the seen log."""

    rig: QuorumRig
    acknowledged: int = 0
    refusals: list[OperationError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = self.rig.simulation.object_store()
        self.process = self.rig.simulation.process("node", self._main)

    async def _main(self, runtime: Runtime) -> None:
        identity = NodeIdentity(
            NODE,
            NodeRole.BROKER,
            runtime.randomness.token(16),
            kafka_host="h",
            kafka_port=1,
            seen=await read_seen(self.store, NAMESPACE),
        )
        session = SessionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            identity=identity,
            addresses=["c0:7000"],
        )
        await self._work(runtime, session)

    async def _work(self, runtime: Runtime, session: SessionClient) -> None:
        async def conversation() -> None:
            try:
                await session.run()
            except OperationError as error:
                self.refusals.append(error)

        talking = asyncio.create_task(conversation())
        witness = Witness(self.store, runtime.clock, NAMESPACE, NODE)
        while not talking.done():
            putting = asyncio.create_task(self._put(session))
            await asyncio.wait((putting, talking), return_when=asyncio.FIRST_COMPLETED)
            if not putting.done():
                putting.cancel()
                break
            if putting.exception() is not None:
                break
            await witness.write(session.seen)
            self.acknowledged += 1
        await talking

    async def _put(self, session: SessionClient) -> None:
        await session.ready()
        key = f"k{self.acknowledged}"
        await session.submit(wire.Operation(put_key=wire.PutKey(key=key, value=b"v")))

    async def until_more(self, count: int) -> None:
        goal = self.acknowledged + count
        await wait_until(lambda: self.acknowledged >= goal, timeout_s=120)


@pytest.mark.parametrize("is_node_alive", [True, False])
def test_a_restored_copy_is_refused(is_node_alive: bool) -> None:
    rig = QuorumRig(31, voters=1)
    worker = Worker(rig)

    async def story() -> None:
        (controller,) = rig.processes
        rig.start()
        worker.process.start()
        await worker.until_more(20)
        older = copy.deepcopy(controller.disk.state)
        await worker.until_more(1_000)
        controller.crash(power_loss=True)
        controller.start()
        await worker.until_more(20)
        assert not worker.refusals, "its own newest directory is accepted"
        if not is_node_alive:
            worker.process.crash()
        controller.crash(power_loss=True)
        controller.disk.state = older
        rig.digests.clear()
        rig.leaders.clear()
        controller.start()
        if not is_node_alive:
            worker.process.start()
        with suppress(TimeoutError):
            await wait_until(lambda: bool(worker.refusals), timeout_s=60)
        assert worker.refusals, "an older copy accepts no node"
        assert "older copy" in worker.refusals[0].message
        assert "force-recovery" in worker.refusals[0].message

    with rig.watching():
        rig.simulation.run(story())


def test_a_copy_is_refused_even_if_its_log_grew_beyond_the_seen_index() -> None:
    rig = QuorumRig(33, voters=1)
    worker = Worker(rig)

    async def story() -> None:
        (controller,) = rig.processes
        rig.start()
        worker.process.start()
        await worker.until_more(20)
        older = copy.deepcopy(controller.disk.state)
        await worker.until_more(3)
        worker.process.crash()
        controller.crash(power_loss=True)
        controller.disk.state = older
        rig.digests.clear()
        rig.leaders.clear()
        led = rig.leader()
        for _ in range(20):  # every start appends an entry
            controller.start()
            led = await rig.until_led(other_than=led)
            controller.crash(power_loss=True)
        controller.start()
        worker.process.start()
        goal = worker.acknowledged + 3
        await wait_until(lambda: bool(worker.refusals) or worker.acknowledged >= goal, timeout_s=60)
        assert worker.refusals
        assert "older copy" in worker.refusals[0].message

    with rig.watching():
        rig.simulation.run(story())


def test_a_copy_made_after_the_last_commit_is_accepted() -> None:
    rig = QuorumRig(32, voters=1)
    worker = Worker(rig)

    async def story() -> None:
        (controller,) = rig.processes
        rig.start()
        worker.process.start()
        await worker.until_more(50)
        worker.process.crash()
        controller.crash(power_loss=False)
        controller.disk.state = copy.deepcopy(controller.disk.state)
        controller.start()
        worker.process.start()
        await worker.until_more(50)
        assert not worker.refusals

    with rig.watching():
        rig.simulation.run(story())


def test_a_node_of_another_cluster_is_no_evidence_about_this_log() -> None:
    """A node of another cluster uses the address of an unregistered controller and reaches this cluster."""
    rig = QuorumRig(34, voters=1)
    worker = Worker(rig)
    answers: list[wire.SessionResponse] = []

    async def stranger(runtime: Runtime) -> None:
        hello = wire.Hello(
            cluster_id="another",
            node_id=NODE + 1,
            role=records_pb2.NODE_ROLE_BROKER,
            incarnation=bytes(16),
            kafka_host="h",
            kafka_port=1,
            node_epoch=3,
            seen=[SeenHistory(0, 1_000, 1_000_000, bytes(8)).message()],
        )
        connection = await runtime.network.connect("c0:7000", SESSION)
        await connection.send(wire.SessionRequest(hello=hello).SerializeToString())
        answers.append(wire.SessionResponse.FromString(await connection.receive()))
        await connection.close()

    async def story() -> None:
        rig.start()
        worker.process.start()
        await worker.until_more(20)
        rig.simulation.process("stranger", stranger).start()
        await wait_until(lambda: bool(answers), timeout_s=60)
        assert "not another" in answers[0].refused.message
        worker.process.crash()
        worker.process.start()
        await worker.until_more(20)
        assert not worker.refusals

    with rig.watching():
        rig.simulation.run(story())
