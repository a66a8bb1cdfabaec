"""Compaction with real components: a controller, a broker and compactors over loopback gRPC, real
clients, objects in a directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from ponor_cli.clients.image_reader import read_image
from ponor_cli.commands.object_map import MapTotals, draw, map_topic, totals_of
from ponor_compactor.app import run as run_compactor
from ponor_compactor.pace import Pace
from ponor_compactor.settings import CompactorSettings
from ponor_controller.settings import CompactionSettings, ControllerSettings
from ponor_metadata.client.node_process import NodeOptions
from ponor_metadata.nouns.compactions import COMPACTIONS
from ponor_metadata.nouns.objects import OBJECTS, ObjectState
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.identity import compose_node_id
from ponor_runtime.object_store import ObjectInfo, ObjectStore, ObjectStoreSlowDownError
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry
from s3stream.stores.open_store import open_raw_multipart_store, open_raw_store, wrap_stores

from tests.integration.cluster_in_process import ORDINAL, RunningCluster, running_cluster

EAGER = ControllerSettings(
    compaction=CompactionSettings(
        compaction_settle_ms=0,
        compaction_patience_ms=500,
        compaction_fan_in=2,
        compaction_survey_interval_ms=100,
    )
)
OFTEN = {"upload_interval_ms": "100"}
SETTINGS = CompactorSettings(
    compactor_split_size_bytes=40_000,
    compactor_lease_ttl_ms=3_000,
    compactor_poll_interval_ms_min=20,
    compactor_poll_interval_ms_max=100,
)
TOPIC, PARTITIONS, ROUNDS, RECORDS_PER_ROUND = "clicks", 3, 12, 60
WAIT_S_MAX = 240.0


class TroubledStore:
    """A store that asks to slow down, or stops answering puts, when the test requests it."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.slow_downs_left = 0
        self.stuck = asyncio.Event()
        self.sticks = False

    async def put(self, key: str, buffers: Any) -> None:
        if self.sticks:
            self.stuck.set()
            await asyncio.Event().wait()
        if self.slow_downs_left:
            self.slow_downs_left -= 1
            raise ObjectStoreSlowDownError("slow down")
        await self._inner.put(key, buffers)

    async def get(self, key: str, start: int, length: int) -> bytes:
        return await self._inner.get(key, start, length)

    async def get_tail(self, key: str, length: int) -> tuple[bytes, int]:
        return await self._inner.get_tail(key, length)

    async def delete(self, keys: Any) -> None:
        await self._inner.delete(keys)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self._inner.list(prefix)

    async def close(self) -> None:
        await self._inner.close()


class Compactor:
    """One worker in this process."""

    def __init__(
        self, number: int, telemetry: Telemetry, store: TroubledStore, task: asyncio.Task[None]
    ) -> None:
        self.number = number
        self.telemetry = telemetry
        self.store = store
        self.task = task

    def tasks(self, outcome: str) -> int:
        return self.telemetry.counter("ponor_compactor_tasks_total", outcome=outcome).value

    def counted(self, name: str) -> int:
        return self.telemetry.counter(name).value

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def compacting(
    cluster: RunningCluster,
    directory: Path,
    number: int = 2_000,
    *,
    sticks: bool = False,
    slow_downs: int = 0,
) -> AsyncIterator[Compactor]:
    network, disk, telemetry = GrpcNetwork(), SystemDisk(), Telemetry()
    runtime = Runtime(SystemClock(), SystemRandomness(), disk, network, telemetry)
    url = f"file://{directory / 'objects'}"
    store = TroubledStore(await open_raw_store(url, runtime=runtime, environment={}))
    store.sticks, store.slow_downs_left = sticks, slow_downs
    parts = await open_raw_multipart_store(url, runtime=runtime, environment={})
    pace = Pace(runtime.clock, SETTINGS, telemetry)
    objects, multipart = wrap_stores(store, parts, runtime=runtime, policy=pace)
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    options = NodeOptions(compose_node_id(ORDINAL, number), (cluster.controller,))
    task = asyncio.create_task(
        run_compactor(
            runtime,
            SETTINGS,
            options,
            store=objects,
            multipart=multipart,
            stop=stop,
            ready=ready.set_result,
            pace=pace,
        )
    )
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    try:
        yield Compactor(number, telemetry, store, task)
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)
        await multipart.close()
        await objects.close()
        await network.close()
        disk.close()


def produce(cluster: RunningCluster) -> dict[int, list[bytes]]:
    """Many small uploads, at least one per round."""
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
    producer = Producer({"bootstrap.servers": cluster.kafka, "linger.ms": 1})
    sent: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    for round_number in range(ROUNDS):
        for number in range(RECORDS_PER_ROUND):
            partition = number % PARTITIONS
            value = b"%d-%d-" % (round_number, number) + b"v" * 300
            producer.produce(TOPIC, value, partition=partition)
            sent[partition].append(value)
        assert producer.flush(WAIT_S_MAX) == 0
        asyncio.run(until(lambda: everything_uploaded(cluster, sent)))
    return sent


def consume(cluster: RunningCluster, expected: dict[int, list[bytes]]) -> None:
    """Check that every record is at its offset, from any start of a reader."""
    for begin in (0, 97, 200):
        consumer = Consumer(
            {"bootstrap.servers": cluster.kafka, "group.id": "unused", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(TOPIC, number, begin) for number in expected])
        wanted = {number: values[begin:] for number, values in expected.items()}
        got: dict[int, list[bytes]] = {number: [] for number in expected}
        while any(len(got[number]) < len(wanted[number]) for number in wanted):
            message = consumer.poll(WAIT_S_MAX)
            assert message is not None, "no record any more"
            assert message.error() is None, message.error()
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert value is not None
            assert offset == begin + len(got[partition])
            got[partition].append(value)
        consumer.close()
        assert got == wanted


async def look(cluster: RunningCluster) -> tuple[MapTotals, dict[tuple[int, str], str]]:
    """The map of the topic: totals, and the line of every stream."""
    image = await read_image([cluster.controller])
    maps = map_topic(image, TOPIC)
    for each in maps:
        assert each.pieces[0].start_offset <= each.start_offset
        assert each.pieces[-1].end_offset == each.end_offset
    return totals_of(image, maps), {(each.partition, each.kind): draw(each, 24) for each in maps}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    clock = SystemClock()
    async with asyncio.timeout(WAIT_S_MAX):
        while not await condition():
            await clock.sleep(0.05)


async def all_in_one_piece(cluster: RunningCluster) -> bool:
    # Meta streams get entries after the data, so a small object of theirs may still wait for others to join.
    maps = map_topic(await read_image([cluster.controller]), TOPIC)
    return all(len(each.pieces) == 1 for each in maps if each.kind == "log")


async def until_done(compactor: Compactor) -> None:
    """Wait for the worker's counter. It counts a task after the commit's answer, slightly later
    than the metadata show it.
    """

    async def counted() -> bool:
        return compactor.tasks("done") >= 1

    await until(counted)


async def held_task(cluster: RunningCluster) -> Any:
    """Wait for a leased task. After a pause of all processes that exceeds the lease, it must be
    leased again first.
    """
    clock = SystemClock()
    async with asyncio.timeout(WAIT_S_MAX):
        while not (held := list((await read_image([cluster.controller]))[COMPACTIONS])):
            await clock.sleep(0.05)
    return held[0]


async def everything_uploaded(cluster: RunningCluster, sent: dict[int, list[bytes]]) -> bool:
    maps = map_topic(await read_image([cluster.controller]), TOPIC)
    ends = {each.partition: each.end_offset for each in maps if each.kind == "log"}
    return ends == {number: len(values) for number, values in sent.items()}


async def test_many_small_uploads_are_compacted_and_every_fetch_returns_the_same(tmp_path: Path) -> None:
    with running_cluster(tmp_path, OFTEN, controller_settings=EAGER) as cluster:
        sent = await asyncio.to_thread(produce, cluster)
        before, lines = await look(cluster)
        assert before.pieces_per_stream_max >= ROUNDS
        assert set(lines[0, "log"]) <= set("▒░23456789+")
        async with compacting(cluster, tmp_path) as compactor:
            reading = asyncio.create_task(asyncio.to_thread(consume, cluster, sent))
            await until(lambda: all_in_one_piece(cluster))
            await reading
            await until_done(compactor)
        assert compactor.counted("ponor_compactor_replaced_bytes_total") > 0
        assert compactor.counted("ponor_compactor_written_bytes_total") > 0
        after, lines = await look(cluster)
        assert after.pieces < before.pieces
        assert lines[0, "log"] == "█" * 24
        await asyncio.to_thread(consume, cluster, sent)
    with running_cluster(tmp_path, OFTEN, controller_settings=EAGER) as cluster:
        await asyncio.to_thread(
            consume, cluster, sent
        )  # nothing is cached: all data comes from the new objects


async def test_a_dead_workers_task_goes_to_another_one(tmp_path: Path) -> None:
    with running_cluster(tmp_path, OFTEN, controller_settings=EAGER) as cluster:
        sent = await asyncio.to_thread(produce, cluster)
        async with compacting(cluster, tmp_path, 2_000, sticks=True) as first:
            async with asyncio.timeout(WAIT_S_MAX):
                await first.store.stuck.wait()
            held = await held_task(cluster)
            await first.kill()
            async with compacting(cluster, tmp_path, 2_001) as second:
                await until(lambda: all_in_one_piece(cluster))
                await until_done(second)
        image = await read_image([cluster.controller])
        assert held.task_id not in image[COMPACTIONS]
        left = [
            row
            for row in image[OBJECTS]
            if row.state is ObjectState.PREPARED and row.node_id == held.worker_id
        ]
        assert left, "the first one's unfinished objects are garbage"
        await asyncio.to_thread(consume, cluster, sent)


async def test_slow_down_halves_the_rate_and_nothing_is_lost(tmp_path: Path) -> None:
    with running_cluster(tmp_path, OFTEN, controller_settings=EAGER) as cluster:
        sent = await asyncio.to_thread(produce, cluster)
        async with compacting(cluster, tmp_path, slow_downs=3) as compactor:
            shares: set[float] = set()

            async def compacted() -> bool:
                # The rate recovers with time, so the test checks its minimum.
                ((_, share),) = compactor.telemetry.gauges("ponor_compactor_pace_ratio")
                shares.add(share)
                return await all_in_one_piece(cluster)

            await until(compacted)
            assert min(shares) < 1
            assert compactor.store.slow_downs_left == 0
        await asyncio.to_thread(consume, cluster, sent)
