"""A broker around a transaction coordinator in virtual time: partitions in memory, recorded markers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from ponor_broker.coordination.ports import PartitionCallback
from ponor_broker.coordination.shards import BrokerPorts
from ponor_broker.transactions.coordinator import TransactionCoordinator
from ponor_broker.transactions.events import AddRequest, EndRequest, InitRequest, ProducerClaim
from ponor_broker.transactions.instructions import Markers
from ponor_broker.transactions.marker_sender import Refusals
from ponor_broker.transactions.settings import TransactionSettings
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import TRANSACTIONS_TOPIC
from ponor_runtime.identity import ProducerId
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemRandomness
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.coordination_kit import Address, MemoryPartition, VirtualClock
from services.broker.tests.serving_kit import Permission

NODE_ID = 65_537
PARTITIONS = 2
OFFSETS_PARTITION = 9
FIRST_PRODUCER_ID = 1_000


@dataclass
class Sent:
    """Markers that were sent."""

    shard: int
    coordinator_epoch: int
    markers: Markers
    done: Callable[[Refusals], None]
    is_cancelled: bool = False

    def finish(self, refusals: Refusals | None = None) -> None:
        assert not self.is_cancelled
        self.done(refusals or {})


class TransactionWorld:
    """A restart creates a new coordinator over the same logs, with a higher leader epoch."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        settings = settings or TransactionSettings()
        self.settings = replace(settings, transaction_topic_partitions=PARTITIONS, transaction_wait_ms_max=0)
        self.clock = VirtualClock()
        self.permission = Permission(self.clock)
        self.logs: dict[int, list[bytearray]] = {index: [] for index in range(PARTITIONS)}
        self.open: dict[int, MemoryPartition] = {}
        self.exists = True
        self.is_led = False
        self.lives = 0
        self.sent: list[Sent] = []
        self.next_producer_id: int | None = FIRST_PRODUCER_ID
        self.failures: list[BaseException] = []
        self._opened: list[PartitionCallback] = []
        self._closed: list[PartitionCallback] = []

    async def start(self) -> TransactionCoordinator:
        self.telemetry = Telemetry()
        runtime = Runtime(
            clock=self.clock,
            randomness=SystemRandomness(),
            disk=None,  # type: ignore[arg-type]  # the coordinator touches neither
            network=None,  # type: ignore[arg-type]
            telemetry=self.telemetry,
            fail_stop=lambda _, error: self.failures.append(error),
        )
        self.lives += 1
        self._opened, self._closed = [], []
        self.coordinator = TransactionCoordinator(
            BrokerPorts(self, self, self, self.permission.serving, NODE_ID, runtime),
            settings=self.settings,
            markers=self,
            take_producer_id=self.take_producer_id,
            offsets_partition_of=lambda _: OFFSETS_PARTITION,
        )
        self.coordinator.start()
        if self.exists:
            for index in self.logs:
                self.open_partition(index)
        await self.clock.settle()
        return self.coordinator

    async def kill(self) -> None:
        """Stop as by SIGKILL: no answers, and nothing more becomes durable."""
        for partition in self.open.values():
            partition._under_way.clear()
        self.open.clear()
        for sent in self.sent:
            sent.is_cancelled = True
        await self.coordinator.shards.tasks.close()

    async def restart(self) -> TransactionCoordinator:
        await self.kill()
        return await self.start()

    def open_partition(self, index: int) -> MemoryPartition:
        partition = self.open[index] = MemoryPartition(index, self.logs[index])
        partition.leader_epoch = self.lives
        for callback in self._opened:
            callback(partition)
        return partition

    def close_partition(self, index: int) -> None:
        partition = self.open.pop(index)
        for callback in self._closed:
            callback(partition)

    def partition_of(self, transactional_id: str) -> MemoryPartition:
        return self.open[self.coordinator.shards.partition_of(transactional_id)]

    # Requests

    async def init(
        self, name: str = "x", *, expected: tuple[int, int] | None = None, ms: int = 60_000
    ) -> str:
        claim = None if expected is None else ProducerClaim(ProducerId(expected[0]), expected[1])
        answer = await self.coordinator.init_producer_id(name, InitRequest(ms, claim))
        return self._told(answer.error, answer.producer_id, answer.producer_epoch)

    async def add(
        self, producer: int, epoch: int, *indexes: int, name: str = "x", generation: int = 2
    ) -> str:
        partitions = {("t", index) for index in indexes}
        request = AddRequest(ProducerClaim(ProducerId(producer), epoch), partitions, generation == 2)
        return (await self.coordinator.add_partitions(name, request)).name

    async def end(
        self, producer: int, epoch: int, *, commit: bool = True, name: str = "x", generation: int = 2
    ) -> str:
        request = EndRequest(ProducerClaim(ProducerId(producer), epoch), commit, generation == 2)
        answer = await self.coordinator.end(name, request)
        return self._told(answer.error, answer.producer_id, answer.producer_epoch)

    async def state(self, name: str = "x") -> str:
        found = await self.coordinator.describe(name)
        if isinstance(found, ErrorCode):
            return found.name
        return f"{found.state.label} {found.producer_id}/{found.producer_epoch}"

    @staticmethod
    def _told(error: ErrorCode, producer_id: int, epoch: int) -> str:
        return error.name + ("" if producer_id < 0 else f" {producer_id}/{epoch}")

    # The ports

    async def take_producer_id(self) -> ProducerId | None:
        await asyncio.sleep(0)
        if self.next_producer_id is None:
            return None
        self.next_producer_id += 1
        return ProducerId(self.next_producer_id - 1)

    def send(
        self, shard: int, coordinator_epoch: int, markers: Markers, done: Callable[[Refusals], None]
    ) -> None:
        self.sent.append(Sent(shard, coordinator_epoch, markers, done))

    def cancel(self, shard: int) -> None:
        for sent in self.sent:
            if sent.shard == shard:
                sent.is_cancelled = True

    async def ensure(self, name: str, *, partitions: int) -> None:
        assert (name, partitions) == (TRANSACTIONS_TOPIC, PARTITIONS)
        await self.clock.sleep(0.05)
        self.exists = True
        for index in self.logs:
            self.open_partition(index)

    def follow(self, topic: str, on_opened: PartitionCallback, on_closed: PartitionCallback) -> None:
        assert topic == TRANSACTIONS_TOPIC
        self._opened.append(on_opened)
        self._closed.append(on_closed)

    def topic_id(self, _name: str) -> UUID | None:
        return None

    @property
    def version(self) -> int:
        return 0

    def names(self) -> list[str]:
        return []

    def topic_name(self, _topic_id: UUID) -> str | None:
        return None

    def partition_count(self, name: str) -> int | None:
        assert name == TRANSACTIONS_TOPIC
        return PARTITIONS if self.exists else None

    def leader(self, _topic: str, index: int) -> Address | None:
        return Address(NODE_ID, "127.0.0.1", 9092) if index in self.open else None

    def is_led_by(self, _topic: str, index: int, _node_id: int) -> bool:
        return index in self.open or self.is_led

    def is_moving_to(self, _topic: str, _index: int, _node_id: int) -> bool:
        return False

    def is_new(self, _topic: str, _index: int) -> bool:
        return False
