"""Two brokers with a share coordinator and a persister each. Partitions are in memory, and requests pass
through the codec.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

from ponor_broker.coordination.ports import PartitionCallback
from ponor_broker.coordination.shards import BrokerPorts
from ponor_broker.handlers.share_state.share_state import ShareStateHandlers
from ponor_broker.peers.connection_pool import PeerUnavailableError
from ponor_broker.share_state.coordinator import ShareCoordinator
from ponor_broker.share_state.persister import CoordinatorPersister
from ponor_broker.share_state.settings import ShareStateSettings
from ponor_kafka.codec import decode_as, encode
from ponor_kafka.internal_topics import SHARE_STATE_TOPIC
from ponor_kafka.message import Message
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.telemetry import Telemetry

from services.broker.tests.coordination_kit import Address, MemoryPartition
from services.broker.tests.serving_kit import Permission

PARTITIONS = 3
TOPIC_ID = UUID(int=7)
TOPIC = "orders"
METHODS = {83: "initialize", 84: "read", 85: "write", 86: "delete", 87: "summary"}


class ShareWorld:
    """The cluster: its topics, the logs of `__share_group_state`, and the leaders."""

    def __init__(self, settings: ShareStateSettings | None = None) -> None:
        self.settings = settings or ShareStateSettings(share_state_topic_partitions=PARTITIONS)
        self.topics: dict[UUID, tuple[str, int]] = {TOPIC_ID: (TOPIC, 60)}
        self.logs: dict[int, list[bytearray]] = {}
        self.leaders: dict[int, int] = {}
        self.epoch = 0
        self.requests: list[tuple[int, Message]] = []
        self.in_flight: Counter[int] = Counter()
        self.in_flight_max = 0
        self.unanswered = 0
        self.nodes = {1: Node(self, 1), 2: Node(self, 2)}

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.persister.close()
            await node.coordinator.close()
            assert node.coordinator.budget.size_bytes == 0
            assert not node.failures

    def create_topic(self) -> None:
        for index in range(self.settings.share_state_topic_partitions):
            self.logs[index] = []
            self.open(index, 1 + index % 2)

    def open(self, index: int, node_id: int) -> None:
        self.epoch += 1
        self.leaders[index] = node_id
        self.nodes[node_id].open(index, self.epoch)

    def move(self, index: int) -> None:
        source = self.leaders[index]
        self.nodes[source].close_partition(index)
        self.open(index, 3 - source)

    def kill(self, node_id: int) -> None:
        """Open the node's partitions at the other one; what was not durable is lost."""
        for index in [index for index, leader in self.leaders.items() if leader == node_id]:
            self.nodes[node_id].partitions[index]._under_way.clear()
            self.move(index)

    def shards(self) -> dict[int, Any]:
        return {
            index: self.nodes[leader].coordinator.shards.by_index[index]
            for index, leader in self.leaders.items()
        }


class Node:
    """A broker; it implements the ports of its coordinator and the connections of its persister."""

    def __init__(self, world: ShareWorld, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.is_up = True
        self.failures: list[BaseException] = []
        self.partitions: dict[int, MemoryPartition] = {}
        self._opened: list[PartitionCallback] = []
        self._closed: list[PartitionCallback] = []
        clock = SystemClock()
        self.telemetry = Telemetry()
        runtime = Runtime(
            clock=clock,
            randomness=SystemRandomness(),
            disk=None,  # type: ignore[arg-type]  # the coordinator touches neither
            network=None,  # type: ignore[arg-type]
            telemetry=self.telemetry,
            fail_stop=lambda _, error: self.failures.append(error),
        )
        self.permission = Permission(clock)
        ports = BrokerPorts(self, self, self, self.permission.serving, node_id, runtime)
        self.coordinator = ShareCoordinator(ports, settings=world.settings)
        self.handlers = ShareStateHandlers(self.coordinator, clock)
        self.persister = CoordinatorPersister(
            [self, self],  # type: ignore[list-item]
            self,
            self.handlers,
            runtime,
            node_id=node_id,
            settings=world.settings,
            create_topic=self.coordinator.shards.create_topic,
        )

    def start(self) -> None:
        self.coordinator.start()
        self.persister.start()

    def open(self, index: int, epoch: int) -> None:
        partition = self.partitions[index] = MemoryPartition(index, self.world.logs[index])
        partition.leader_epoch = epoch
        for callback in self._opened:
            callback(partition)

    def close_partition(self, index: int) -> None:
        partition = self.partitions.pop(index)
        for callback in self._closed:
            callback(partition)

    # Connections to other brokers

    async def connection(self, node_id: int) -> Link:
        if not self.world.nodes[node_id].is_up:
            raise PeerUnavailableError(f"broker {node_id} does not answer")
        return Link(self.world, node_id)

    def image_changed(self) -> None: ...

    async def close(self) -> None: ...

    # Ports of the coordinator

    def follow(self, topic: str, on_opened: PartitionCallback, on_closed: PartitionCallback) -> None:
        assert topic == SHARE_STATE_TOPIC
        self._opened.append(on_opened)
        self._closed.append(on_closed)

    async def ensure(self, name: str, *, partitions: int) -> None:
        assert (name, partitions) == (SHARE_STATE_TOPIC, self.world.settings.share_state_topic_partitions)
        await asyncio.sleep(0)
        if not self.world.logs:
            self.world.create_topic()

    def topic_id(self, _name: str) -> UUID | None:
        return None

    @property
    def version(self) -> int:
        return 0

    def names(self) -> list[str]:
        return [name for name, _ in self.world.topics.values()]

    def topic_name(self, topic_id: UUID) -> str | None:
        found = self.world.topics.get(topic_id)
        return None if found is None else found[0]

    def partition_count(self, name: str) -> int | None:
        if name == SHARE_STATE_TOPIC:
            return len(self.world.logs) or None
        return dict(self.world.topics.values()).get(name)

    def leader_id(self, topic: str, index: int) -> int | None:
        assert topic == SHARE_STATE_TOPIC
        return self.world.leaders.get(index)

    def leader(self, topic: str, index: int) -> Address | None:
        leader = self.leader_id(topic, index)
        return None if leader is None else Address(leader, "127.0.0.1", 9092)

    def is_led_by(self, topic: str, index: int, node_id: int) -> bool:
        return self.leader_id(topic, index) == node_id

    def is_moving_to(self, _topic: str, _index: int, _node_id: int) -> bool:
        return False

    def is_new(self, _topic: str, _index: int) -> bool:
        return False


class Link:
    """A connection: requests and answers pass through the codec."""

    def __init__(self, world: ShareWorld, node_id: int) -> None:
        self.world = world
        self.node_id = node_id

    async def ask(
        self, request: Message, version: int, expected: type[Message], *, timeout_s: float
    ) -> Message:
        del timeout_s
        arrived, _ = decode_as(type(request), version, encode(request, version), 0)
        self.world.requests.append((self.node_id, arrived))
        self.world.in_flight[self.node_id] += 1
        self.world.in_flight_max = max(self.world.in_flight_max, self.world.in_flight[self.node_id])
        handlers = self.world.nodes[self.node_id].handlers
        try:
            await asyncio.sleep(0)
            answer = await getattr(handlers, METHODS[request.API_KEY])(arrived)
        finally:
            self.world.in_flight[self.node_id] -= 1
        if self.world.unanswered:
            self.world.unanswered -= 1
            raise ConnectionClosedError("no answer")
        returned, _ = decode_as(expected, version, encode(answer, version), 0)
        return returned
