"""A simulated cluster of brokers between which partitions move, and a Kafka client that sends
requests to them.

The scenarios in the tests decide which partitions move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from ponor_broker.partitions.handoff.handoff import Handoff, Stage
from ponor_broker.services import BrokerServices
from ponor_broker.settings import BrokerSettings
from ponor_cluster_simulation.cluster.sim_cluster import ClusterSettings, SimCluster
from ponor_cluster_simulation.workload.kafka_client import KafkaClient
from ponor_controller.settings import ControllerSettings
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ponor_kafka.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ponor_kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ponor_kafka.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ponor_kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ponor_kafka.record_builder import build_batch
from ponor_metadata.image.image import MetadataImage
from ponor_metadata.nouns.nodes import WalKind
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, PartitionRow
from ponor_runtime.runtime import Runtime
from ponor_runtime.telemetry import Telemetry
from ponor_simulation.loop import INCARNATION
from ponor_simulation.object_store import StoreFaults
from ponor_simulation.process import wait_until
from ponor_simulation.simulation import Simulation

TOPIC = "orders"
ASK_S_MAX = 60.0
START_S_MAX = 30.0
SETTLE_S_MAX = 60.0
MIB: Final = 1024 * 1024


def with_small_logs(broker: BrokerSettings, controller: ControllerSettings) -> ClusterSettings:
    """Return settings with small log segments.

    Each node fills two segments with zeros when it starts: with the default sizes, this would be the largest
    part of a scenario's CPU time.
    """
    return ClusterSettings(
        broker=replace(broker, storage=replace(broker.storage, wal_bytes_max=16 * MIB)),
        controller=replace(controller, log_segment_bytes=1 * MIB),
    )


class MovingWorld:
    """A controller and brokers. `services` are the brokers' components by process, in their present lives."""

    def __init__(
        self,
        seed: int = 1,
        *,
        brokers: int = 2,
        wal: WalKind = WalKind.FILE,
        broker: BrokerSettings | None = None,
        controller: ControllerSettings | None = None,
    ) -> None:
        self.simulation = Simulation(seed)
        self.cluster = SimCluster(
            self.simulation,
            with_small_logs(broker or BrokerSettings(), controller or ControllerSettings()),
            brokers=brokers,
            wal=wal,
        )
        self.topic_id = b""
        self.timestamp_ms: int | None = None
        """Timestamp of records; None: now. Retention deletes old records."""
        self.services: dict[str, BrokerServices] = {}
        self.node_endpoints: dict[int, tuple[str, int]] = {}
        self._clients: dict[str, KafkaClient] = {}
        self._runtime: Runtime | None = None

    def tell(self, story: Callable[[MovingWorld], Awaitable[None]], *, partitions: int = 1) -> None:
        """Start everything, create the topic, and run the scenario."""

        async def client(runtime: Runtime) -> None:
            self._runtime = runtime
            await asyncio.Event().wait()

        async def scenario() -> None:
            self.cluster.start_all()
            self.simulation.process("client", client).start()
            await wait_until(lambda: self.cluster.is_serving, poll_s=0.05, timeout_s=START_S_MAX)
            await self.create(TOPIC, partitions)
            await story(self)
            self.cluster.check_alive()

        with self.cluster.watch.on(), self._watch_brokers():
            self.simulation.run(scenario())

    @contextmanager
    def _watch_brokers(self) -> Iterator[None]:
        begin = BrokerServices.__init__

        def watched(services: BrokerServices, *args: Any, **named: Any) -> None:
            begin(services, *args, **named)
            incarnation = INCARNATION.get()
            assert incarnation is not None
            self.services[incarnation.name.partition("#")[0]] = services

        with patch.object(BrokerServices, "__init__", watched):
            yield

    # State of the cluster

    def image_of(self, name: str) -> MetadataImage:
        """The image of a broker."""
        return self.cluster.watch.followers[name].image

    def row(self, index: int = 0) -> PartitionRow:
        """The controller's row of a partition."""
        assert self.cluster.watch.controller is not None
        row = self.cluster.watch.controller.image[PARTITIONS].get((self.topic_id, index))
        assert row is not None
        return row

    def moves(self) -> int:
        """The number of moves in progress at the controller."""
        assert self.cluster.watch.controller is not None
        return len(self.cluster.watch.controller.image[MOVES])

    def telemetry_of(self, name: str) -> Telemetry:
        """The metrics of a broker."""
        runtime = self.cluster.processes[name].runtime
        assert runtime is not None
        return runtime.telemetry

    def handoff(self, name: str, index: int = 0) -> Handoff | None:
        """The handoff of a partition at its source; None if there is none."""
        return self.services[name].partitions.source.get((self.topic_id, index))

    def is_at(self, name: str, stage: Stage, index: int = 0) -> bool:
        """Return whether the handoff of a partition at its source is in this stage."""
        handoff = self.handoff(name, index)
        return handoff is not None and handoff.stage is stage

    def leader(self, index: int = 0) -> str:
        """The name of the leading broker."""
        name = self.cluster.broker_of(self.row(index).leader_id)
        assert name is not None
        return name

    def other(self, name: str) -> str:
        """Any broker except this one."""
        return next(one for one in self.cluster.brokers if one != name)

    def committed_index(self) -> int:
        """The controller's newest batch."""
        assert self.cluster.watch.controller is not None
        return self.cluster.watch.controller.image.index

    def serves_somewhere(self, index: int = 0) -> bool:
        """Whether the next leader of a partition serves it."""
        name = self.leader(index)
        if name not in self.cluster.serving:
            return False
        partition = self.services[name].partitions.get(self.topic_id, index)
        return partition is not None and partition.is_writable

    def store_of_faults(self) -> StoreFaults:
        """Set the faults of the object store."""
        assert self.cluster.store is not None
        return self.cluster.store.faults

    def forget_client(self, name: str) -> None:
        """Drop the connection to a broker."""
        self._clients.pop(name, None)

    async def until(
        self, condition: Callable[[], bool], s_max: float = SETTLE_S_MAX, poll_s: float = 0.001
    ) -> None:
        """Let time pass."""
        await wait_until(condition, poll_s=poll_s, timeout_s=s_max)

    # Client requests

    def _now_ms(self) -> int:
        assert self._runtime is not None
        return self._runtime.clock.wall_ms()

    async def client(self, name: str) -> KafkaClient:
        """Return the shared connection to a broker."""
        if name not in self._clients:
            self._clients[name] = await self.new_client(name)
        return self._clients[name]

    async def new_client(self, name: str) -> KafkaClient:
        """Return a separate connection to a broker."""
        assert self._runtime is not None
        return await KafkaClient.connect(self._runtime, f"{name}:9092", "story")

    async def create(self, topic: str, partitions: int) -> None:
        """Wait until every broker's metadata contain the topic."""
        client = await self.client(self.cluster.brokers[0])
        request = CreateTopicsRequest(
            topics=[CreatableTopic(topic, num_partitions=partitions, replication_factor=-1)],
            timeout_ms=10_000,
        )
        answer = await client.ask(request, 7, CreateTopicsResponse, timeout_s=ASK_S_MAX)
        assert answer.topics[0].error_code == ErrorCode.NONE
        self.topic_id = answer.topics[0].topic_id
        await self.until(
            lambda: all(
                len(list(self.image_of(name)[PARTITIONS])) >= partitions for name in self.cluster.brokers
            )
        )

    async def move(
        self, name: str | None, *indexes: int, by: str | None = None, topic: str = TOPIC
    ) -> list[int]:
        """Request moves of partitions to a broker (None: cancel); return the error codes."""
        replicas = None if name is None else [self.cluster.node_of(name)]
        client = await self.client(by or self.cluster.brokers[0])
        rows = [ReassignablePartition(index, replicas) for index in indexes or (0,)]
        answer = await client.ask(
            AlterPartitionReassignmentsRequest(10_000, topics=[ReassignableTopic(topic, rows)]),
            0,
            AlterPartitionReassignmentsResponse,
            timeout_s=ASK_S_MAX,
        )
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        return [one.error_code for one in answer.responses[0].partitions]

    async def listed(self) -> list[tuple[int, int, int]]:
        """The moves as Kafka's tools see them: partition, target, source."""
        client = await self.client(self.cluster.brokers[0])
        answer = await client.ask(
            ListPartitionReassignmentsRequest(10_000, None),
            0,
            ListPartitionReassignmentsResponse,
            timeout_s=ASK_S_MAX,
        )
        return [
            (one.partition_index, one.adding_replicas[0], one.removing_replicas[0])
            for topic in answer.topics
            for one in topic.partitions
        ]

    async def produce(
        self,
        name: str,
        records: int = 1,
        index: int = 0,
        *,
        sequence: int = -1,
        producer_id: int = -1,
        version: int = 10,
        transactional: bool = False,
        arrived: Callable[[ProduceResponse], None] | None = None,
    ) -> PartitionProduceResponse:
        """Produce one batch at a broker; return the result."""
        now_ms = self._now_ms() if self.timestamp_ms is None else self.timestamp_ms
        batch = build_batch(
            [(now_ms, b"key", b"value-%d" % number) for number in range(records)],
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            transactional=transactional,
        )
        request = ProduceRequest(
            transactional_id="scenario" if transactional else None,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[TopicProduceData(TOPIC, partition_data=[PartitionProduceData(index, bytes(batch))])],
        )
        client = await self.client(name)
        answer = await client.ask(request, version, ProduceResponse, timeout_s=ASK_S_MAX, arrived=arrived)
        self.node_endpoints = {one.node_id: (one.host, one.port) for one in answer.node_endpoints}
        return answer.responses[0].partition_responses[0]

    async def fetch(
        self,
        name: str,
        offset: int = 0,
        index: int = 0,
        *,
        max_wait_ms: int = 0,
        version: int = 16,
        isolation_level: int = 0,
    ) -> PartitionData:
        """Fetch one partition without a session."""
        row = FetchPartition(index, fetch_offset=offset, partition_max_bytes=1 << 20, last_fetched_epoch=-1)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=isolation_level,
            topics=[FetchTopic("", self.topic_id, [row])],
        )
        client = await self.client(name)
        answer = await client.ask(request, version, FetchResponse, timeout_s=ASK_S_MAX)
        return answer.responses[0].partitions[0]

    async def epoch_end(self, name: str, epoch: int, index: int = 0) -> tuple[int, int]:
        """OffsetForLeaderEpoch: epoch and its end."""
        wanted = OffsetForLeaderPartition(index, -1, epoch)
        request = OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic(TOPIC, [wanted])])
        client = await self.client(name)
        answer = await client.ask(request, 4, OffsetForLeaderEpochResponse, timeout_s=ASK_S_MAX)
        one = answer.topics[0].partitions[0]
        assert one.error_code == ErrorCode.NONE
        return one.leader_epoch, one.end_offset

    async def end_offset(self, name: str, index: int = 0) -> tuple[int, int, int]:
        """ListOffsets of the end: error, offset, leader epoch."""
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(TOPIC, [ListOffsetsPartition(index, -1, -1)])])
        client = await self.client(name)
        answer = await client.ask(request, 7, ListOffsetsResponse, timeout_s=ASK_S_MAX)
        one = answer.topics[0].partitions[0]
        return one.error_code, one.offset, one.leader_epoch
