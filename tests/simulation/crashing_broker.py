"""A machine that crashes and loses power, with a coordinator on real partitions, streams and write-ahead log,
over the simulated disk and object store. The controller is a model; clients are outside the machine.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, Generic, TypeAlias, TypeVar

from ponor_broker.partitions.handoff.opening import Opening, OpenRequest
from ponor_broker.partitions.handoff.partition_opener import PartitionOpener
from ponor_broker.partitions.identity import PartitionId
from ponor_broker.partitions.partition import Partition
from ponor_broker.partitions.state.sequence_order import RefusedSequences
from ponor_broker.partitions.topics.topic_config import TopicConfig
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.serving import Serving
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.keys import KEYS, KeyRow
from ponor_runtime.runtime import Runtime
from ponor_runtime.tasks import BackgroundTasks
from ponor_simulation.process import SimProcess, wait_until
from ponor_simulation.simulation import Simulation
from s3stream.client import StreamClient
from s3stream.file_wal import FileWal
from s3stream.settings import KIB, MIB, StorageSettings
from s3stream.stores.open_store import wrap_object_store
from s3stream.stores.retrying import RetrySettings

from libs.s3stream.tests.cluster_model import ClusterModel

NODE_ID: Final = 1
TOPIC_PARTITIONS: Final = 4
"""Partitions of every other topic."""
STORAGE: Final = StorageSettings(
    log_cache_bytes_max=1 * MIB,
    append_waiting_bytes_max=64 * KIB,
    block_cache_bytes_max=1 * MIB,
    upload_size_bytes_max=24 * KIB,
    upload_interval_ms=3_000,
    split_size_bytes=16 * KIB,
    object_block_bytes_max=4 * KIB,
    wal_bytes_max=4 * MIB,
)

C = TypeVar("C")
Ask: TypeAlias = Callable[[C], Awaitable[Any]]


class OpenInternal:
    """The partitions of an internal topic of one process, as its partition manager returns them."""

    def __init__(self, topic: str, partitions: list[Partition]) -> None:
        self._topic = topic
        self._partitions = {partition.index: partition for partition in partitions}

    async def ensure(self, name: str, *, partitions: int) -> None:
        raise AssertionError("it exists")

    def follow(self, _topic: str, on_opened: Callable[[Any], None], on_closed: Callable[[Any], None]) -> None:
        del on_closed
        for partition in self._partitions.values():
            on_opened(partition)

    def topic_id(self, _name: str) -> None:
        return None

    def partition_count(self, name: str) -> int:
        return len(self._partitions) if name == self._topic else TOPIC_PARTITIONS


class CrashingBroker(ABC, Generic[C]):
    """What exists longer than the broker: cluster, bucket, and requests of clients."""

    def __init__(self, seed: int, topic: str, partitions: int) -> None:
        # First in, first out, as asyncio guarantees: `Partition._appended` asserts that confirmations come in
        # the order of the appends. services/broker/tests/groups shows that the coordinators' own log works in
        # any order.
        self.simulation = Simulation(seed, shuffle=False)
        self.chance: random.Random = self.simulation.chance
        self.process: SimProcess = self.simulation.process("broker", self.live)
        self.cluster = ClusterModel(self.process.clock)
        self.store = self.simulation.object_store()
        self.image = MetadataImage()
        self.lives = 0
        self.requests: asyncio.Queue[tuple[Ask[C], asyncio.Future[Any]]] | None = None
        self.partitions: list[Partition] = []
        self.quiet = False
        self._topic = topic
        self._partition_count = partitions

    @abstractmethod
    def begin(self, runtime: Runtime, broker: Any, serving: Serving) -> C:
        """Create and start the coordinator of a life; `broker` implements the ports of its partitions."""

    async def live(self, runtime: Runtime) -> None:
        """One process: recover, open, serve until it crashes."""
        self.lives += 1
        wal = await FileWal.open(
            runtime.disk,
            PurePosixPath("/wal"),
            identity=bytes(16),
            settings=STORAGE,
            telemetry=runtime.telemetry,
        )
        ports = self.cluster.register()
        streams = await StreamClient.start(
            runtime=runtime,
            store=wrap_object_store(self.store, runtime=runtime, retry=RetrySettings()),
            wal=wal,
            streams=ports,
            objects=ports,
            settings=STORAGE,
            tasks=BackgroundTasks(runtime.fail_stop),
        )
        self.partitions = await self._open(runtime, streams)
        serving = Serving(runtime.clock, staleness_ms=lambda: 0, silence_ms=lambda: 0)
        coordinator = self.begin(runtime, OpenInternal(self._topic, self.partitions), serving)
        requests = self.requests = asyncio.Queue()
        handlers = BackgroundTasks(runtime.fail_stop)
        while True:
            method, answer = await requests.get()
            handlers.spawn(_serve(method, coordinator, answer), "request")

    async def _open(self, runtime: Runtime, streams: StreamClient) -> list[Partition]:
        opener = PartitionOpener(
            streams,
            Topics(lambda: self.image),
            self._put_keys,
            runtime.clock,
            config=TopicConfig(),
            producers_max=10,
            refused=RefusedSequences(runtime.clock),
            attend=lambda _: None,
        )
        wanted = [
            Opening(OpenRequest(PartitionId(bytes(16), self._topic, index), self.lives, {}))
            for index in range(self._partition_count)
        ]
        opened: dict[Opening, Partition] = {}
        for refusal in await opener.open(wanted, opened.update):
            raise refusal.error
        return [opened[each] for each in wanted]

    async def _put_keys(self, puts: Sequence[tuple[str, bytes]]) -> list[bytes]:
        for key, value in puts:
            self.image[KEYS].put(KeyRow(key, value))
        return [value for _, value in puts]

    async def start(self) -> None:
        """Start the process; return when it serves."""
        self.process.start()
        await wait_until(lambda: self.requests is not None)

    def crash(self) -> None:
        """End the process, mostly with the machine."""
        self.requests = None
        self.process.crash(power_loss=self.chance.random() < 0.7)

    async def ask(self, method: Ask[C], timeout_s: float) -> Any:
        """Send a request; None if no answer arrives in time."""
        if self.requests is None:
            await asyncio.sleep(0.1)
            return None
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.requests.put_nowait((method, answer))
        done, _ = await asyncio.wait([answer], timeout=timeout_s)
        return answer.result() if done else None


def immediately(call: Callable[..., Any]) -> Ask[Any]:
    """Return a request that needs no await."""

    async def answer(coordinator: Any) -> Any:
        return call(coordinator)

    return answer


async def _serve(method: Ask[C], coordinator: C, answer: asyncio.Future[Any]) -> None:
    body = await method(coordinator)
    if not answer.done():
        answer.set_result(body)
