"""Session and subscription clients on a faulty network: every operation is executed once, and the
images are equal.

The controller here is a small one that keeps its log in memory and answers repeats with the stored
result. Connections are reset, calls end in the middle, and subscribers get snapshots or resume.
"""

from __future__ import annotations

import asyncio
import os
import random

import pytest
from crc32c import crc32c
from ponor.controller.v1 import session_service_pb2 as session_wire
from ponor.controller.v1 import subscription_service_pb2 as subscription_wire
from ponor.metadata.v1 import records_pb2 as pb
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.operations import operation_digest
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.image import snapshot
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.image.validate import validate
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import NODES, NodeRole
from ponor_metadata.nouns.nodes import OPERATIONS as OPERATIONS_TABLE
from ponor_rpc.methods import SESSION, SUBSCRIBE
from ponor_runtime.identity import ClusterOrdinal, NodeId, compose_node_id
from ponor_runtime.network import Connection
from ponor_runtime.runtime import Runtime
from ponor_simulation.process import wait_until
from ponor_simulation.simulation import Simulation

SEEDS = range(int(os.environ.get("PONOR_SEEDS", "20")))
NODE = compose_node_id(ClusterOrdinal(1), 1)
ADDRESS = "controller:9000"
OPERATIONS = 150


class SmallController:
    """One voter without a disk."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.image = MetadataImage()
        self.log: list[bytes] = []
        self.digests = [self.image.digest]
        self.grown = asyncio.Event()
        self.carried_out: list[str] = []
        self.commit(
            pb.Record(cluster_formatted=pb.ClusterFormatted(cluster_id="c", cluster_ordinal=1, namespace="n"))
        )

    def commit(self, *records: pb.Record) -> int:
        index = self.image.index + 1
        batch = pb.RecordBatch(index=index, term=1, cluster_time_ms=index, records=records)
        encoded = batch.SerializeToString(deterministic=True)
        self.image.apply_committed(encoded)
        self.log.append(encoded)
        self.digests.append(self.image.digest)
        self.grown.set()
        self.grown = asyncio.Event()
        return index

    async def run(self, runtime: Runtime) -> None:
        await runtime.network.listen(
            ADDRESS, {SESSION: self.serve_session, SUBSCRIBE: self.serve_subscription}
        )
        await asyncio.Event().wait()

    async def serve_session(self, connection: Connection) -> None:
        hello = session_wire.SessionRequest.FromString(await connection.receive()).hello
        node = self.image[NODES].get(NodeId(hello.node_id))
        if node is None:
            registered = pb.NodeRegistered(
                node_id=hello.node_id, node_epoch=1, role=hello.role, incarnation=hello.incarnation
            )
            self.commit(pb.Record(node_registered=registered))
        welcome = session_wire.Welcome(
            cluster_id="c", node_epoch=1, registered_index=2, session_timeout_ms=9_000
        )
        await connection.send(session_wire.SessionResponse(welcome=welcome).SerializeToString())
        while self.chance.random() > 0.05:
            request = session_wire.SessionRequest.FromString(await connection.receive())
            results = [
                self.carry_out(request.operations.first_incomplete_id, operation)
                for operation in request.operations.operations
            ]
            self.chance.shuffle(results)
            if self.chance.random() < 0.1:
                return  # executed, but its answer is lost with this connection
            answer = session_wire.SessionResponse(results=session_wire.ResultBatch(results=results))
            await connection.send(answer.SerializeToString())

    def carry_out(
        self, first_incomplete_id: int, operation: session_wire.Operation
    ) -> session_wire.OperationResult:
        kept = self.image[OPERATIONS_TABLE].get((NODE, operation.request_id))
        if kept is not None:
            assert kept.digest == operation_digest(operation), "one id, two operations"
            result = session_wire.OperationResult.FromString(kept.result)
            result.commit_index = kept.commit_index
            return result
        result = session_wire.OperationResult(request_id=operation.request_id, done=session_wire.Done())
        completed = pb.OperationCompleted(
            node_id=NODE,
            node_epoch=1,
            first_incomplete_id=first_incomplete_id,
            request_id=operation.request_id,
            digest=operation_digest(operation),
            result=result.SerializeToString(),
        )
        put = pb.KeyPut(key=operation.put_key.key, value=operation.put_key.value)
        result.commit_index = self.commit(pb.Record(key_put=put), pb.Record(operation_completed=completed))
        self.carried_out.append(operation.put_key.key)
        return result

    async def serve_subscription(self, connection: Connection) -> None:
        start = subscription_wire.SubscribeRequest.FromString(await connection.receive()).start
        sent = start.resume_index
        assert sent <= self.image.index
        if sent == 0 or self.chance.random() < 0.3:
            sent = await self.send_snapshot(connection)
        else:
            assert start.resume_digest == self.digests[sent]
        while self.chance.random() > 0.05:
            if sent == self.image.index:
                progress = subscription_wire.Progress(commit_index=sent)
                await connection.send(
                    subscription_wire.SubscribeResponse(progress=progress).SerializeToString()
                )
                await self.grown.wait()
            until = min(self.image.index, sent + self.chance.randint(1, 20))
            batches = subscription_wire.Batches(
                batches=self.log[sent:until], digest=self.digests[until], first_index=sent + 1
            )
            await connection.send(subscription_wire.SubscribeResponse(batches=batches).SerializeToString())
            sent = until

    async def send_snapshot(self, connection: Connection) -> int:
        data, index, digest = snapshot.encode(self.image), self.image.index, self.image.digest
        frames = [
            subscription_wire.SubscribeResponse(
                snapshot_begin=subscription_wire.SnapshotBegin(index=index, size_bytes=len(data))
            )
        ]
        for position in range(0, len(data), 1_000):
            chunk = data[position : position + 1_000]
            frames.append(
                subscription_wire.SubscribeResponse(
                    snapshot_chunk=subscription_wire.SnapshotChunk(data=chunk, crc32c=crc32c(chunk))
                )
            )
        frames.append(
            subscription_wire.SubscribeResponse(snapshot_end=subscription_wire.SnapshotEnd(digest=digest))
        )
        for frame in frames:
            await connection.send(frame.SerializeToString())
        return index


class Node:
    """A process with both clients, and many concurrent callers."""

    def __init__(self) -> None:
        self.finished = False
        self.subscription: SubscriptionClient | None = None
        self.shown_index = 0

    def shows(self, index: int, *, least: int) -> None:
        assert index >= least, f"the image went from {self.shown_index} to {index}"
        self.shown_index = index

    async def run(self, runtime: Runtime) -> None:
        subscription = self.subscription = SubscriptionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            addresses=[ADDRESS],
        )
        session = SessionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            identity=NodeIdentity(NODE, NodeRole.BROKER, runtime.randomness.token(16)),
            addresses=[ADDRESS],
            applied_index=lambda: subscription.image.index,
        )
        subscription.listeners.append(lambda batch: self.shows(batch.index, least=self.shown_index + 1))
        subscription.image_listeners.append(lambda image: self.shows(image.index, least=self.shown_index))
        running = [asyncio.create_task(subscription.run()), asyncio.create_task(session.run())]

        async def call(number: int) -> None:
            await runtime.clock.sleep(runtime.randomness.uniform(0, 5))
            key = f"key-{number}"
            result = await session.submit(
                session_wire.Operation(put_key=session_wire.PutKey(key=key, value=b"v" * number))
            )
            await subscription.wait_for(result.commit_index)
            row = subscription.image[KEYS].get(key)
            assert row is not None, "an operation was answered, its index reached, and it does not show"
            assert row.value == b"v" * number

        await asyncio.gather(*(call(number) for number in range(OPERATIONS)))
        self.finished = True
        await asyncio.wait(running)


async def scenario(simulation: Simulation, controller: SmallController, node: Node) -> None:
    controller_process = simulation.process("controller", controller.run)
    node_process = simulation.process("node", node.run)
    controller_process.start()
    node_process.start()
    while not node.finished:
        assert node_process.failure is None, node_process.failure
        await asyncio.sleep(simulation.chance.uniform(0, 0.5))
        match simulation.chance.randrange(4):
            case 0:
                simulation.network.reset_connections("node", "controller")
            case 1:
                simulation.network.cut("controller", "node")
                await asyncio.sleep(simulation.chance.uniform(0, 0.3))
                simulation.network.heal()
            case _:
                pass
    await wait_until(
        lambda: node.subscription is not None and node.subscription.image.index == controller.image.index
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_operations_take_effect_once_and_the_image_follows(seed: int) -> None:
    simulation = Simulation(seed)
    controller = SmallController(random.Random(seed))
    node = Node()
    simulation.run(scenario(simulation, controller, node))
    assert sorted(controller.carried_out) == sorted(f"key-{number}" for number in range(OPERATIONS))
    assert node.subscription is not None
    image = node.subscription.image
    assert snapshot.encode(image) == snapshot.encode(controller.image)
    validate(image)
