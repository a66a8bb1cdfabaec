"""A controller that loses power repeatedly while a broker sends operations.

`test_controller_log_crashes` runs it over many seeds. The broker and the follower are the shipped
clients on a simulated network. The controller is the shipped service on a disk that loses unsynced
data.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ponor.controller.v1 import session_service_pb2 as wire
from ponor_controller.app import run
from ponor_controller.consensus.directory_identity import DirectoryIdentity, open_identity
from ponor_controller.consensus.members import membership_of
from ponor_controller.consensus.record_log import RecordLog, RecordLogSettings
from ponor_controller.options import ControllerOptions
from ponor_controller.settings import ControllerSettings
from ponor_controller.startup.recovery import recover
from ponor_metadata.client.node_identity import NodeIdentity
from ponor_metadata.client.session import SessionClient
from ponor_metadata.client.subscription import SubscriptionClient
from ponor_metadata.image import snapshot
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns import counters
from ponor_metadata.nouns.keys import KEYS
from ponor_metadata.nouns.nodes import NodeRole
from ponor_metadata.nouns.streams import STREAMS
from ponor_metadata.nouns.topics import PARTITIONS, PARTITIONS_OF, TOPICS
from ponor_runtime.identity import ClusterOrdinal, StreamId, compose_id, compose_node_id
from ponor_runtime.runtime import Runtime
from ponor_runtime.telemetry import Telemetry
from ponor_simulation.disk import DiskFault
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation

ORDINAL = ClusterOrdinal(1)
DATA = PurePosixPath("/controller")
ADDRESS = "controller:7000"
SETTINGS = ControllerSettings(
    log_segment_bytes=16 * 1024,
    batch_bytes_max=8 * 1024,
    snapshot_batches=40,
    log_trailing_batches=20,
    retained_batches_max=200,
    session_timeout_ms=1_000,
    progress_interval_ms=100,
)
WORKERS = 6
ROUNDS_PER_WORKER = 25
ROUNDS_PER_CHANGE = 6


@dataclass
class History:
    """Acknowledged operations, and counters of the run."""

    keys: dict[str, bytes] = field(default_factory=dict)
    producer_ids: list[tuple[int, int]] = field(default_factory=list)
    uploads: dict[int, int] = field(default_factory=dict)
    """Stream id to its acknowledged end offset."""
    partitions: dict[bytes, int] = field(default_factory=dict)
    """Topic id to its acknowledged number of partitions."""
    replicas: dict[bytes, list[str]] = field(default_factory=dict)
    """Topic id to the acknowledged items of its list setting, in order."""
    commit_indices: list[int] = field(default_factory=list)
    crashes: int = 0
    fail_stops: int = 0
    snapshots: int = 0
    trimmed: int = 0
    follower: MetadataImage | None = None


async def _controller(runtime: Runtime) -> None:
    options = ControllerOptions(DATA, ADDRESS, ORDINAL, format=True)
    await run(runtime, SETTINGS, options, stop=asyncio.Event(), ready=lambda _: None)


class Broker:
    """A session with workers that extend streams, put keys, allocate producer ids and change settings."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.done = False

    async def main(self, runtime: Runtime) -> None:
        identity = NodeIdentity(
            compose_node_id(ORDINAL, 0),
            NodeRole.BROKER,
            runtime.randomness.token(16),
            kafka_host="b",
            kafka_port=9092,
        )
        self._session = SessionClient(
            network=runtime.network,
            clock=runtime.clock,
            randomness=runtime.randomness,
            telemetry=runtime.telemetry,
            identity=identity,
            addresses=[ADDRESS],
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(self._session.run())
            await self._session.ready()
            async with asyncio.TaskGroup() as workers:
                for number in range(WORKERS):
                    workers.create_task(self._work(number, runtime))
            self.done = True
            await self._session.close()
            await running

    async def _submit(self, **kind: Any) -> wire.OperationResult:
        result = await self._session.submit(wire.Operation(**kind))
        self._history.commit_indices.append(result.commit_index)
        return result

    async def _work(self, number: int, runtime: Runtime) -> None:
        created = await self._submit(create_streams=wire.CreateStreams(streams=[wire.StreamTags()]))
        (stream_id,) = created.streams_created.stream_ids
        opening = wire.OpenStreams(streams=[wire.OpenStream(stream_id=stream_id, stream_epoch=0)])
        await self._submit(open_streams=opening)
        topic_id = await self._create_topic(number)
        end = 0
        for round_ in range(ROUNDS_PER_WORKER):
            await runtime.clock.sleep(runtime.randomness.uniform(0, 0.05))
            key, value = f"{number}/{round_}", bytes([round_]) * 20
            held = (await self._submit(put_key=wire.PutKey(key=key, value=value))).key_held
            assert held.created, f"{key} was put twice"
            self._history.keys[key] = value
            allocate = wire.AllocateProducerIds(count=1 + round_)
            granted = (await self._submit(allocate_producer_ids=allocate)).producer_ids_granted
            self._history.producer_ids.append((granted.first_producer_id, granted.count))
            end = await self._upload(stream_id, end, runtime)
            if round_ % ROUNDS_PER_CHANGE == 0:
                await self._alter_topic(topic_id, number, round_)

    async def _create_topic(self, number: int) -> bytes:
        wanted = wire.CreateTopic(name=f"topic-{number}", partitions=1, replication_factor=-1)
        held = (await self._submit(create_topic=wanted)).topic_held
        self._history.partitions[held.topic_id] = 1
        return held.topic_id

    async def _alter_topic(self, topic_id: bytes, number: int, round_: int) -> None:
        """Add one item to a list and one partition to the topic; both show repeated and lost changes."""
        name, item = "leader.replication.throttled.replicas", f"{round_}:{number}"
        append = wire.ConfigChange(name=name, kind=wire.ConfigChange.KIND_APPEND, value=item)
        await self._submit(alter_topic_configs=wire.AlterTopicConfigs(topic_id=topic_id, changes=[append]))
        self._history.replicas.setdefault(topic_id, []).append(item)
        count = self._history.partitions[topic_id] + 1
        await self._submit(create_partitions=wire.CreatePartitions(topic_id=topic_id, count=count))
        self._history.partitions[topic_id] = count
        setting = wire.ConfigChange(
            name="log.retention.ms", kind=wire.ConfigChange.KIND_SET, value=str(number * 1_000 + round_)
        )
        await self._submit(alter_broker_configs=wire.AlterBrokerConfigs(node_id=-1, changes=[setting]))

    async def _upload(self, stream_id: int, end: int, runtime: Runtime) -> int:
        prepare = wire.PrepareObjects(count=1, ttl_ms=3_600_000)
        reserved = (await self._submit(prepare_objects=prepare)).objects_reserved
        grown = end + 1 + runtime.randomness.below(5)
        uploaded = wire.UploadedRange(stream_id=stream_id, stream_epoch=0, start_offset=end, end_offset=grown)
        single = wire.UploadedStreamObject(object_id=reserved.first_object_id, size_bytes=10, range=uploaded)
        await self._submit(commit_upload=wire.CommitUpload(stream_objects=[single]))
        self._history.uploads[stream_id] = grown
        return grown


async def _follower(runtime: Runtime, history: History) -> None:
    client = SubscriptionClient(
        network=runtime.network,
        clock=runtime.clock,
        randomness=runtime.randomness,
        telemetry=runtime.telemetry,
        addresses=[ADDRESS],
    )
    seen: list[int] = []
    client.listeners.append(lambda batch: seen.append(batch.index))

    def adopt(image: MetadataImage) -> None:
        assert not seen or image.index >= seen[-1], "the follower's index moved back"
        history.follower = image

    client.image_listeners.append(adopt)
    await client.run()


def run_controller(seed: int) -> tuple[History, str]:
    """Run one seed. Return the history and the digest of the trace.

    Raises:
        SimulationFailedError: an acknowledged operation is lost or was executed twice, or the images differ.
    """
    history = History()
    simulation = Simulation(seed)
    controller = simulation.process("controller", _controller)
    broker = Broker(history)
    clients = [
        simulation.process("broker", broker.main),
        simulation.process("follower", lambda runtime: _follower(runtime, history)),
    ]
    simulation.run(_scenario(simulation, controller, clients, broker, history))
    return history, simulation.trace.digest


async def _scenario(
    simulation: Simulation,
    controller: SimProcess,
    clients: list[SimProcess],
    broker: Broker,
    history: History,
) -> None:
    chance, clock = simulation.chance, controller.clock
    controller.start()
    for client in clients:
        client.start()
    for _ in range(chance.randrange(3, 7)):
        faulty = chance.random() < 0.3
        if faulty:
            fault = DiskFault("sync", path_part=f"{DATA}/log/", skip=chance.randrange(30))
            controller.disk.faults.append(fault)
        await clock.sleep(chance.choice((0.01, 0.1, 0.6, 1.5)) * chance.random())
        if controller.running:
            controller.crash(power_loss=chance.random() < 0.8)
            history.crashes += 1
        else:
            assert faulty, f"the controller stopped itself: {controller.failure!r}"
            history.fail_stops += 1
        controller.disk.faults.clear()
        await clock.sleep(chance.random() * 0.3)
        controller.start()
    await wait_until(lambda: broker.done or clients[0].failure is not None, timeout_s=300)
    assert clients[0].failure is None, f"the broker failed: {clients[0].failure!r}"
    last = max(history.commit_indices)
    await wait_until(lambda: history.follower is not None and history.follower.index >= last, timeout_s=60)
    controller.crash(power_loss=True)
    await _check(controller, history)


async def _check(controller: SimProcess, history: History) -> None:
    """Restart the controller and compare it with the acknowledged operations and the follower's image."""
    runtime = controller.runtime
    assert runtime is not None
    identity = await open_identity(controller.disk, DATA, "", _no_new_directory)
    settings = RecordLogSettings(SETTINGS.log_segment_bytes, SETTINGS.proposals_bytes_max)
    log = await RecordLog.open(controller.disk, DATA, identity.directory_id, settings, Telemetry())
    history.snapshots = log.snapshot.header.index if log.snapshot is not None else 0
    stored = await log.recover(membership_of(identity.initial_voters))
    recovered = recover(log, stored, SETTINGS)
    await log.close()
    history.trimmed = recovered.tail.begin_index
    image, follower = recovered.image, history.follower
    digests = {image.index: image.digest}
    for entry in stored.entries:  # with one voter all entries are committed
        if entry.index > image.index:
            image.apply_committed(entry.data)
            digests[entry.index] = image.digest
    assert follower is not None
    assert image.index >= max(history.commit_indices), "an acknowledged batch is lost"
    assert image.index >= follower.index, "the follower saw a batch that is lost"
    here = digests.get(follower.index, recovered.tail.digest_at(follower.index))
    assert here == follower.digest, "the follower's history differs"
    if image.index == follower.index:
        assert snapshot.encode(image) == snapshot.encode(follower), "snapshot and tail differ from the log"
    assert {row.key: row.value for row in image[KEYS]} == history.keys
    for stream_id, end in history.uploads.items():
        stream = image[STREAMS].get(StreamId(stream_id))
        assert stream is not None
        assert stream.end_offset == end, (
            f"stream {stream_id} ends at {stream.end_offset}, {end} was acknowledged"
        )
    for topic_id, count in history.partitions.items():
        topic = image[TOPICS].get(topic_id)
        assert topic is not None
        assert len(image[PARTITIONS].find(PARTITIONS_OF, topic_id)) == count
        assert topic.configs == {
            "leader.replication.throttled.replicas": ",".join(history.replicas[topic_id])
        }
    _check_once(image, history)


def _no_new_directory() -> DirectoryIdentity:
    raise AssertionError("the file identity is lost")


def _check_once(image: MetadataImage, history: History) -> None:
    """Check that every operation took effect once: the allocated blocks of ids have no gap."""
    expected = compose_id(ORDINAL, counters.FIRST_SEQUENCE)
    for first, count in sorted(history.producer_ids):
        assert first == expected, f"producer ids from {expected} on are missing or were allocated twice"
        expected = first + count
    assert counters.next_value(image, counters.PRODUCER) == expected
