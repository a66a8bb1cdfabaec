"""Sessions with scripted controllers on real loopback connections, and the frames of their protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient, SessionSettings
from ponor_metadata.nouns.nodes import NodeRole
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_rpc.methods import SESSION
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

from libs.metadata.tests.metadata_kit import NODE_A
from libs.metadata.tests.scripted_controller import ScriptedConnection, ScriptedController, nothing_left

IDENTITY = NodeIdentity(
    node_id=NODE_A, role=NodeRole.BROKER, incarnation=b"i" * 16, kafka_host="127.0.0.1", kafka_port=9092
)
SETTINGS = SessionSettings(
    reconnect_backoff_ms_min=1, reconnect_backoff_ms_max=20, overloaded_backoff_ms_max=30
)
Peer = ScriptedConnection[wire.SessionRequest]


@dataclass
class World:
    network: GrpcNetwork
    controllers: list[ScriptedController[wire.SessionRequest]] = field(default_factory=list)
    sessions: list[tuple[SessionClient, asyncio.Task[None]]] = field(default_factory=list)

    async def controller(self) -> ScriptedController[wire.SessionRequest]:
        controller = ScriptedController(self.network, SESSION, wire.SessionRequest.FromString)
        await controller.start()
        self.controllers.append(controller)
        return controller

    def session(
        self, *addresses: str, settings: SessionSettings = SETTINGS
    ) -> tuple[SessionClient, asyncio.Task[None]]:
        client = SessionClient(
            network=self.network,
            clock=SystemClock(),
            randomness=SystemRandomness(),
            telemetry=Telemetry(),
            identity=IDENTITY,
            addresses=addresses,
            settings=settings,
            applied_index=lambda: 77,
        )
        running = asyncio.create_task(client.run())
        self.sessions.append((client, running))
        return client, running

    async def welcomed(self) -> tuple[SessionClient, ScriptedController[wire.SessionRequest], Peer]:
        controller = await self.controller()
        client, _ = self.session(controller.address)
        peer = await controller.accept()
        await welcome(peer)
        await client.ready()
        return client, controller, peer


@asynccontextmanager
async def session_world() -> AsyncIterator[World]:
    """A world that closes its clients and controllers."""
    world = World(GrpcNetwork())
    yield world
    for client, running in world.sessions:
        await client.close()
        await asyncio.wait((running,))
    for controller in world.controllers:
        await controller.close()
    await world.network.close()
    await nothing_left()


async def welcome(peer: Peer, node_epoch: int = 3, session_timeout_ms: int = 60_000) -> wire.Hello:
    hello = (await peer.receive()).hello
    await peer.send(
        wire.SessionResponse(
            welcome=wire.Welcome(
                cluster_id="c-1",
                node_epoch=node_epoch,
                registered_index=5,
                cluster_time_ms=1_000,
                session_timeout_ms=session_timeout_ms,
            )
        )
    )
    return hello


def put_key(key: str, size: int = 1) -> wire.Operation:
    return wire.Operation(put_key=wire.PutKey(key=key, value=b"v" * size))


def done(request_id: int, commit_index: int = 9) -> wire.OperationResult:
    return wire.OperationResult(request_id=request_id, commit_index=commit_index, done=wire.Done())


def refused(request_id: int, code: error_pb2.ErrorCode.ValueType) -> wire.OperationResult:
    return wire.OperationResult(request_id=request_id, error=error_pb2.Error(code=code, message="because"))


async def answer(peer: Peer, *results: wire.OperationResult) -> None:
    await peer.send(wire.SessionResponse(results=wire.ResultBatch(results=results)))


async def next_batch(peer: Peer) -> wire.OperationBatch:
    while True:
        request = await peer.receive()
        if request.WhichOneof("frame") == "operations":
            return request.operations


def ids(batch: wire.OperationBatch) -> list[int]:
    return [operation.request_id for operation in batch.operations]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
