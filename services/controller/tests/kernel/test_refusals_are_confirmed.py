"""A leader that was deposed during a pause makes no node stop."""

from __future__ import annotations

import asyncio

import pytest
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_rpc.errors import error_name
from ponor_rpc.methods import SESSION
from ponor_runtime.identity import compose_node_id
from ponor_runtime.runtime import Runtime

from services.controller.tests.quorum_rig import ORDINAL, QuorumRig


def _hello(node_epoch: int) -> bytes:
    hello = wire.Hello(
        node_id=compose_node_id(ORDINAL, 7),
        role=records_pb2.NODE_ROLE_BROKER,
        incarnation=b"y" * 16,
        kafka_host="h",
        kafka_port=9092,
        node_epoch=node_epoch,
    )
    return wire.SessionRequest(hello=hello).SerializeToString()


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 3, 7])
def test_a_deposed_leader_does_not_refuse_a_node_that_registered_with_the_new_one(
    seed: int, isolated: bool
) -> None:
    """The node's session breaks after it registered, and it connects to the old leader when that one
    resumes.
    """
    rig = QuorumRig(seed)
    answers: list[wire.SessionResponse] = []

    async def scenario() -> None:
        asked: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        answered: asyncio.Queue[wire.SessionResponse] = asyncio.Queue()

        async def node(runtime: Runtime) -> None:
            while True:
                address, node_epoch = await asked.get()
                connection = await runtime.network.connect(address, SESSION)
                await connection.send(_hello(node_epoch))
                answered.put_nowait(wire.SessionResponse.FromString(await connection.receive()))

        rig.start()
        rig.simulation.process("node", node).start()
        old = await rig.until_led()
        paused = rig.process_of(old)
        paused.pause()
        new = rig.process_of(await rig.until_led(other_than=old))
        asked.put_nowait((f"{new.name}:7000", 0))
        answers.append(await answered.get())
        asked.put_nowait((f"{paused.name}:7000", answers[0].welcome.node_epoch))
        await asyncio.sleep(0.1 + 0.2 * seed)
        if isolated:
            for other in {"c0", "c1", "c2"} - {paused.name}:
                rig.simulation.network.cut(paused.name, other)
                rig.simulation.network.cut(other, paused.name)
        paused.resume()
        answers.append(await answered.get())

    with rig.watching():
        rig.simulation.run(scenario())
    assert answers[0].HasField("welcome")
    assert error_name(answers[1].refused.code) == "NOT_LEADER"
