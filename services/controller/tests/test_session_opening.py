"""Sessions are opened only at a leading controller of the same cluster, and hanging callers do not
block others.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_controller.app import run
from ponor_controller.controller import Controller
from ponor_controller.kernel.operation import Caller
from ponor_controller.options import ControllerOptions
from ponor_controller.server.sessions.session_service import SessionService
from ponor_metadata.client.controllers import KnownControllers
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.methods import SESSION, SUBSCRIBE
from ponor_runtime.identity import NodeId, compose_node_id
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import wait_until

from services.controller.tests.quorum_rig import DATA, ORDINAL, SETTINGS, QuorumRig, Writer

HELLO = wire.Hello(
    node_id=compose_node_id(ORDINAL, 0),
    role=records_pb2.NODE_ROLE_BROKER,
    incarnation=bytes(16),
    kafka_host="h",
    kafka_port=1,
)


@pytest.mark.parametrize("turns", range(8))
def test_no_session_begins_if_leadership_ends_during_the_registration(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = QuorumRig(41)
    deposed: list[Controller] = []
    last_words: list[wire.SessionResponse] = []
    register = SessionService._register

    def depose(controller: Controller, turns_left: int) -> None:
        if turns_left:
            asyncio.get_running_loop().call_soon(depose, controller, turns_left - 1)
            return
        controller.driver.node.step_down("test")
        controller.driver.schedule()

    async def registered(self: SessionService, hello: wire.Hello) -> tuple[Caller, int]:
        result = await register(self, hello)
        leader = rig.leader()
        if not deposed and leader is not None:
            deposed.append(leader)
            depose(leader, turns)
        return result

    monkeypatch.setattr(SessionService, "_register", registered)

    async def quiet(runtime: Runtime) -> None:
        connection = await runtime.network.connect(f"{rig.process_of(rig.leader()).name}:7000", SESSION)
        await connection.send(wire.SessionRequest(hello=HELLO).SerializeToString())
        while not last_words or not last_words[-1].HasField("refused"):
            last_words.append(wire.SessionResponse.FromString(await connection.receive()))
        await connection.close()

    async def story() -> None:
        rig.start()
        await rig.until_led()
        node = rig.simulation.process("node", quiet)
        node.start()
        await wait_until(lambda: bool(deposed))
        await asyncio.sleep(0.1)
        assert node.finished, "it is sent to the next leader"
        assert last_words[-1].refused.code == error_pb2.ERROR_CODE_NOT_LEADER

    with rig.watching():
        rig.simulation.run(story())


def test_hanging_callers_do_not_block_others() -> None:
    rig = QuorumRig(42, voters=1, settings=replace(SETTINGS, sessions_max=3))
    writer = Writer(rig, ("c0:7000",))
    closed: list[str] = []

    async def call(runtime: Runtime, method: str) -> None:
        connection = await runtime.network.connect("c0:7000", method)
        try:
            await connection.receive()
        except ConnectionClosedError:
            closed.append(method)

    async def silent(runtime: Runtime) -> None:
        await asyncio.gather(*(call(runtime, method) for method in (SESSION, SUBSCRIBE) for _ in range(3)))

    async def story() -> None:
        rig.start()
        await rig.until_led()
        await asyncio.sleep(1)
        rig.simulation.process("silent", silent).start()
        await asyncio.sleep(1)
        writer.process.start()
        await writer.until_written(20)
        await wait_until(lambda: len(closed) == 6)

    with rig.watching():
        rig.simulation.run(story())


def test_a_node_that_reaches_another_cluster_returns_to_its_own() -> None:
    class OneClusterRig(QuorumRig):
        """Ignores controller b0, because it belongs to another cluster with another history."""

        def saw(self, controller: Any) -> None:
            if controller.name != "b0":
                super().saw(controller)

        def leads(self, controller: Any) -> None:
            if controller.name != "b0":
                super().leads(controller)

    own, other = OneClusterRig(43, voters=1), "b0:7000"
    simulation = own.simulation
    clients: list[tuple[SessionClient, SubscriptionClient]] = []

    async def foreign(runtime: Runtime) -> None:
        options = ControllerOptions(DATA, other, ORDINAL, format=True)
        await run(runtime, SETTINGS, options, stop=asyncio.Event(), ready=lambda _: None)

    async def node(runtime: Runtime) -> None:
        identity = NodeIdentity(
            NodeId(HELLO.node_id), NodeRole.BROKER, bytes(16), kafka_host="h", kafka_port=1
        )
        ports: dict[str, Any] = {
            "network": runtime.network,
            "clock": runtime.clock,
            "randomness": runtime.randomness,
            "telemetry": runtime.telemetry,
            "addresses": KnownControllers(["c0:7000", other]),
        }
        session, subscription = SessionClient(identity=identity, **ports), SubscriptionClient(**ports)
        clients.append((session, subscription))
        await asyncio.gather(session.run(), subscription.run())

    async def story() -> None:
        own.start()
        await own.until_led()
        member = simulation.process("node", node)
        member.start()
        await wait_until(lambda: bool(clients))
        session, subscription = clients[0]
        await subscription.wait_for((await session.ready()).registered_index)
        simulation.process("b0", foreign).start()
        (controller,) = own.processes
        controller.crash()
        await asyncio.sleep(5)
        assert member.running, "it tries the addresses in turn"
        controller.start()
        put = wire.Operation(put_key=wire.PutKey(key="k", value=b"v"))
        await subscription.wait_for((await session.submit(put)).commit_index)

    with own.watching():
        simulation.run(story())
