"""A whole controller over loopback gRPC and a real disk: sessions, subscriptions and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.controller.v1 import subscription_service_pb2 as feed
from ponor.metadata.v1.records_pb2 import NODE_ROLE_BROKER
from ponor_controller.app import run
from ponor_controller.consensus.errors import DirectoryInUseError, RecordLogCorruptError, WrongDirectoryError
from ponor_controller.options import ControllerOptions
from ponor_controller.settings import ControllerSettings
from ponor_metadata.client.errors import NodeFencedError
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.image import snapshot
from ponor_metadata.nouns.cluster import FEATURES, TENANTS, cluster_of
from ponor_metadata.nouns.counters import COUNTERS
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import NodeRole
from ponor_metadata.nouns.topics import PARTITIONS
from ponor_rpc.errors import OperationError
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_rpc.methods import SESSION, SUBSCRIBE
from ponor_runtime.identity import ClusterOrdinal, compose_node_id
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry

from libs.rpc.tests import closing
from tests.ports import HOST, free_port

Client = TypeVar("Client", SessionClient, SubscriptionClient)
ORDINAL = ClusterOrdinal(3)
FAST = ControllerSettings(
    log_segment_bytes=4 << 20,
    progress_interval_ms=50,
    session_timeout_ms=60_000,  # no node is suspected because this machine paused
    session_reset_grace_ms=60_000,
    resume_wait_ms_max=200,
)


LAG_MS_MAX = 90_000
"""Only a hanging test takes this long, even on a busy machine."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    closing.give_time(monkeypatch)


@dataclass
class Served:
    """A running controller."""

    runtime: Runtime
    address: str
    stop: asyncio.Event
    task: asyncio.Task[None]

    async def close(self) -> None:
        """Stop it before `serving` does."""
        self.stop.set()
        await self.task

    def session(
        self, number: int = 0, role: NodeRole = NodeRole.BROKER, incarnation: bytes | None = None
    ) -> SessionClient:
        identity = NodeIdentity(
            compose_node_id(ORDINAL, number),
            role,
            incarnation or self.runtime.randomness.token(16),
            kafka_host="localhost" if role is NodeRole.BROKER else "",
            kafka_port=9092 if role is NodeRole.BROKER else 0,
        )
        return SessionClient(
            network=self.runtime.network,
            clock=self.runtime.clock,
            randomness=self.runtime.randomness,
            telemetry=Telemetry(),
            identity=identity,
            addresses=[self.address],
        )

    def subscription(self) -> SubscriptionClient:
        return SubscriptionClient(
            network=self.runtime.network,
            clock=self.runtime.clock,
            randomness=self.runtime.randomness,
            telemetry=Telemetry(),
            addresses=[self.address],
        )


@asynccontextmanager
async def serving(
    data: Path, settings: ControllerSettings = FAST, listen: str = "127.0.0.1:0"
) -> AsyncIterator[Served]:
    network = GrpcNetwork()
    runtime = Runtime(SystemClock(), SystemRandomness(), SystemDisk(), network, Telemetry())
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    options = ControllerOptions(data, listen, ORDINAL, format=True)
    task = asyncio.create_task(run(runtime, settings, options, stop=stop, ready=ready.set_result))
    try:
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield Served(runtime, ready.result()["session"], stop, task)
    finally:
        stop.set()
        await task
        await network.close()


@asynccontextmanager
async def running(client: Client) -> AsyncIterator[Client]:
    task = asyncio.create_task(client.run())
    try:
        if isinstance(client, SessionClient):
            await client.ready()
        yield client
    finally:
        await client.close()
        await asyncio.gather(task, return_exceptions=True)


def _put(key: str, value: bytes = b"v") -> wire.Operation:
    return wire.Operation(put_key=wire.PutKey(key=key, value=value))


async def test_a_broker_registers_and_its_changes_are_visible(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as controller,
        running(controller.session()) as broker,
        running(controller.subscription()) as follower,
    ):
        await follower.wait_for(broker.registered_index, LAG_MS_MAX)
        cluster = cluster_of(follower.image)
        assert cluster is not None
        assert (cluster.cluster_id, cluster.cluster_ordinal) == (broker.cluster_id, ORDINAL)
        assert cluster.namespace != cluster.cluster_id, "drawn on its own"
        assert [(row.tenant_id, len(row.cluster_id)) for row in follower.image[TENANTS]] == [("", 22)]
        assert [(row.name, row.level) for row in follower.image[FEATURES]] == [("metadata.level", 1)]

        result = await broker.submit(
            wire.Operation(create_topic=wire.CreateTopic(name="t", partitions=4, replication_factor=-1))
        )
        await follower.wait_for(result.commit_index, LAG_MS_MAX)
        assert len(follower.image[PARTITIONS]) == 4
        with pytest.raises(OperationError) as refused:
            await broker.submit(wire.Operation(delete_topic=wire.DeleteTopic(topic_id=bytes(16))))
        assert refused.value.code == error_pb2.ERROR_CODE_TOPIC_NOT_FOUND


async def test_a_thousand_operations_at_once_reach_two_followers(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as controller,
        running(controller.session()) as broker,
        running(controller.subscription()) as one,
    ):
        results = await asyncio.gather(*(broker.submit(_put(f"k{n}")) for n in range(1_000)))
        last = max(result.commit_index for result in results)
        assert len({result.request_id for result in results}) == 1_000
        assert len({result.commit_index for result in results}) < 1_000, (
            "operations that come together share batches"
        )
        async with running(controller.subscription()) as two:
            await asyncio.gather(one.wait_for(last, LAG_MS_MAX), two.wait_for(last, LAG_MS_MAX))
            assert one.image.digest == two.image.digest
            assert snapshot.encode(one.image) == snapshot.encode(two.image)
            assert len(two.image[KEYS]) == 1_000


async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    async with serving(tmp_path) as controller, running(controller.session()) as broker:
        await broker.submit(_put("before"))
        epoch, cluster_id = broker.node_epoch, broker.cluster_id
    async with serving(tmp_path) as controller, running(controller.session()) as broker:
        assert (broker.node_epoch, broker.cluster_id) == (epoch + 1, cluster_id)
        async with running(controller.subscription()) as follower:
            held = await broker.submit(_put("other"))
            await follower.wait_for(held.commit_index, LAG_MS_MAX)
            assert [row.key for row in follower.image[KEYS]] == ["before", "other"]


async def test_clients_survive_a_restart_of_the_controller(tmp_path: Path) -> None:
    # A port outside the system's range, so that no other process gets it while the controller is stopped.
    async with serving(tmp_path, listen=f"{HOST}:{free_port()}") as controller:
        listen = controller.address
        broker, follower = controller.session(), controller.subscription()
        network = GrpcNetwork()
        broker._network = follower._network = network
        async with running(broker), running(follower):
            first = await broker.submit(_put("a"))
            await follower.wait_for(first.commit_index, LAG_MS_MAX)
            image = follower.image
            controller_gone = asyncio.Event()

            async def restart() -> wire.OperationResult:
                await controller_gone.wait()
                async with serving(tmp_path, listen=listen):
                    result = await broker.submit(_put("b"))
                    await follower.wait_for(result.commit_index, LAG_MS_MAX)
                    return result

            restarted = asyncio.create_task(restart())
            await controller.close()
            controller_gone.set()
            result = await restarted
            assert result.commit_index == first.commit_index + 2, "between them only the opening of a term"
            assert follower.image is image, "resumed, not started over"
        await network.close()


async def test_an_operation_repeated_on_a_new_connection_gets_the_same_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as controller:
        hello = wire.Hello(
            node_id=compose_node_id(ORDINAL, 0),
            role=NODE_ROLE_BROKER,
            incarnation=b"i" * 16,
            kafka_host="h",
            kafka_port=1,
        )
        allocate = wire.Operation(request_id=7, allocate_producer_ids=wire.AllocateProducerIds(count=10))
        answers = []
        for _ in range(2):
            connection = await controller.runtime.network.connect(controller.address, SESSION)
            await connection.send(wire.SessionRequest(hello=hello).SerializeToString())
            welcome = wire.SessionResponse.FromString(await connection.receive()).welcome
            assert welcome.node_epoch == 1
            batch = wire.OperationBatch(first_incomplete_id=7, operations=[allocate])
            await connection.send(wire.SessionRequest(operations=batch).SerializeToString())
            response = wire.SessionResponse.FromString(await connection.receive())
            answers.append(response.results.results[0])
            await connection.close()
        assert answers[0] == answers[1]
        assert answers[0].producer_ids_granted.count == 10


async def test_a_new_process_ends_the_old_ones_session(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as controller,
        running(controller.session()) as old,
        running(controller.session()) as new,
    ):
        assert new.node_epoch == old.node_epoch + 1
        await asyncio.wait_for(old.fenced.wait(), LAG_MS_MAX / 1000)
        with pytest.raises(NodeFencedError):
            await old.submit(_put("late"))
        await new.submit(_put("fresh"))


async def test_an_idle_cluster_writes_nothing(tmp_path: Path) -> None:
    # Heartbeats arrive every second.
    settings = ControllerSettings(
        progress_interval_ms=20, session_timeout_ms=3_000, session_reset_grace_ms=3_000
    )
    async with serving(tmp_path, settings) as controller, running(controller.session()) as broker:
        gc = controller.session(1000, NodeRole.GC)
        async with running(controller.subscription()) as follower, running(gc):
            await follower.wait_for(gc.registered_index, LAG_MS_MAX)
            index = follower.image.index
            for _ in range(20):
                claim = wire.Operation(claim_objects=wire.ClaimObjects(limit=10, ttl_ms=1_000))
                result = await gc.submit(claim)
                assert len(result.objects_granted.objects) == 0
                await controller.runtime.clock.sleep(0.1)
            assert follower.image.index == index
            assert (await broker.submit(_put("k"))).commit_index == index + 1


async def test_a_snapshot_on_disk_serves_the_restart_and_new_followers(tmp_path: Path) -> None:
    settings = ControllerSettings(snapshot_batches=5, progress_interval_ms=50)
    async with serving(tmp_path, settings) as controller, running(controller.session()) as broker:
        for _ in range(5):
            await asyncio.gather(*(broker.submit(_put(f"k{n}")) for n in range(70)))
            await asyncio.gather(
                *(
                    broker.submit(wire.Operation(allocate_producer_ids=wire.AllocateProducerIds(count=1)))
                    for _ in range(70)
                )
            )
        async with running(controller.subscription()) as follower:
            last = await broker.submit(_put("last"))
            await follower.wait_for(last.commit_index, LAG_MS_MAX)
            before = [list(table) for table in (follower.image[KEYS], follower.image[COUNTERS])]
    assert list((tmp_path / "snapshots").iterdir())
    async with serving(tmp_path, settings) as controller, running(controller.subscription()) as follower:
        await follower.wait_for(last.commit_index, LAG_MS_MAX)
        assert [list(table) for table in (follower.image[KEYS], follower.image[COUNTERS])] == before


async def _converse(controller: Served, method: str, *frames: bytes) -> bytes:
    connection = await controller.runtime.network.connect(controller.address, method)
    try:
        for frame in frames:
            await connection.send(frame)
        last = b""
        while True:
            try:
                last = await connection.receive()
            except ConnectionClosedError:
                return last
    finally:
        await connection.close()


async def test_invalid_frames_end_only_their_own_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as controller, running(controller.session(5)) as broker:
        hello = wire.SessionRequest(
            hello=wire.Hello(
                node_id=compose_node_id(ORDINAL, 1),
                role=NODE_ROLE_BROKER,
                incarnation=b"x" * 16,
                kafka_host="h",
                kafka_port=1,
            )
        ).SerializeToString()
        too_many = wire.OperationBatch(operations=[wire.Operation(request_id=n + 1) for n in range(1_025)])
        below = wire.OperationBatch(first_incomplete_id=9, operations=[wire.Operation(request_id=8)])
        conversations = [
            [b"\xff\xff\xff"],
            [b""],
            [wire.SessionRequest(heartbeat=wire.Heartbeat()).SerializeToString()],
            [wire.SessionRequest(hello=wire.Hello(node_id=1)).SerializeToString()],
            [hello, b"\xff\xff\xff"],
            [hello, hello],
            [hello, wire.SessionRequest(operations=too_many).SerializeToString()],
            [hello, wire.SessionRequest(operations=below).SerializeToString()],
        ]
        for frames in conversations:
            response = wire.SessionResponse.FromString(await _converse(controller, SESSION, *frames))
            assert response.refused.code == error_pb2.ERROR_CODE_INVALID_REQUEST, frames
            assert response.refused.message
        subscriptions = [
            b"\xff\xff",
            b"",
            feed.SubscribeRequest(ack=feed.SubscribeAck()).SerializeToString(),
            feed.SubscribeRequest(start=feed.SubscribeStart(cluster_id="other")).SerializeToString(),
        ]
        for frame in subscriptions:
            answer = feed.SubscribeResponse.FromString(await _converse(controller, SUBSCRIBE, frame))
            assert answer.refused.code == error_pb2.ERROR_CODE_INVALID_REQUEST, frame
        beyond = feed.SubscribeRequest(start=feed.SubscribeStart(resume_index=10**9)).SerializeToString()
        answer = feed.SubscribeResponse.FromString(await _converse(controller, SUBSCRIBE, beyond))
        assert answer.refused.code == error_pb2.ERROR_CODE_CONTROLLER_BEHIND
        await broker.submit(_put("still here"))


async def test_a_directory_has_one_controller(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with pytest.raises(DirectoryInUseError, match="another controller"):
            async with serving(tmp_path):
                pass


async def test_a_lost_log_is_not_formatted_again(tmp_path: Path) -> None:
    async with serving(tmp_path):
        pass
    for path in (tmp_path / "log").iterdir():
        path.unlink()
    with pytest.raises(RecordLogCorruptError, match="the log is empty"):
        async with serving(tmp_path):
            pass


async def test_the_ordinal_of_a_cluster_never_changes(tmp_path: Path) -> None:
    async with serving(tmp_path):
        pass
    runtime = Runtime(SystemClock(), SystemRandomness(), SystemDisk(), GrpcNetwork(), Telemetry())
    options = ControllerOptions(tmp_path, "127.0.0.1:0", ClusterOrdinal(4), format=True)
    with pytest.raises(WrongDirectoryError, match="ordinal 3"):
        await run(runtime, FAST, options, stop=asyncio.Event(), ready=lambda _: None)
