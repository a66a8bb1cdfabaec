"""A producer with acks=0 and an idempotent one, while their partition moves or opens slowly."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import pytest
from ponor_cluster_simulation.workload.kafka_client import KafkaClient
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.fetch import PartitionData
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_kafka.record_batch import split_batches
from ponor_kafka.record_builder import build_batch
from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.network import ConnectionClosedError

from tests.scenarios.moving_world import TOPIC, MovingWorld

PRODUCER = 4711
MOVES = 10
PAUSE_S = 0.02
IN_FLIGHT_S_MAX = 2.0
"""Until a move has ended, and the client has detected that its connection is closed."""


@dataclass
class SilentConnection:
    """Batches sent with acks=0 on one connection, and their times."""

    sent: list[tuple[float, bytes]] = field(default_factory=list)
    closed_at_s: float | None = None


class SilentProducer:
    """Sends to the broker that names itself leader. A refusal closes the connection, and the client
    reconnects.
    """

    def __init__(self, world: MovingWorld, topic: str = TOPIC) -> None:
        self._world = world
        self._topic = topic
        self._number = 0
        self.connections: list[SilentConnection] = []
        self.stopping = False

    async def run(self) -> None:
        brokers = list(self._world.cluster.brokers)
        number = 0
        while not self.stopping:
            name = brokers[number % len(brokers)]
            number += 1
            with suppress(ConnectionClosedError):
                client = await self._world.new_client(name)
                try:
                    if await names_itself(self._world, client, name, self._topic):
                        await self._send_to(client)
                finally:
                    await client.close()
            # A closed connection fails immediately: without a pause, virtual time would not advance.
            await asyncio.sleep(PAUSE_S)

    async def _send_to(self, client: KafkaClient) -> None:
        connection = SilentConnection()
        self.connections.append(connection)
        while not (self.stopping or client.is_closed):
            value = b"silent-%06d" % self._number
            self._number += 1
            connection.sent.append((self._world.simulation.loop.time(), value))
            try:
                await client.tell(silent_request(self._topic, value), 10)
            except ConnectionClosedError:
                await client.close()
            await asyncio.sleep(PAUSE_S)
        if client.is_closed:
            connection.closed_at_s = self._world.simulation.loop.time()
        else:
            await asyncio.sleep(IN_FLIGHT_S_MAX)
            assert not client.is_closed, "the last batches are not refused"

    def check(self, stored: list[bytes]) -> None:
        """Check that stored batches are in the order of sending, and that only batches in flight on
        closed connections are missing.
        """
        assert stored == sorted(set(stored)), "in order, each once"
        have = set(stored)
        for connection in self.connections:
            lost = [at for at, value in connection.sent if value not in have]
            kept = [at for at, value in connection.sent if value in have]
            if connection.closed_at_s is None:
                assert not lost
            elif lost:
                assert not kept or max(kept) < min(lost), "a connection loses only its last batches"
                assert connection.closed_at_s - min(lost) < IN_FLIGHT_S_MAX


async def names_itself(world: MovingWorld, client: KafkaClient, name: str, topic: str) -> bool:
    """Whether a broker's Metadata names it as leader."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    answer = await client.ask(request, 12, MetadataResponse, timeout_s=30)
    partitions = answer.topics[0].partitions
    return bool(partitions) and partitions[0].leader_id == world.cluster.node_of(name)


def silent_request(topic: str, value: bytes) -> ProduceRequest:
    batch = build_batch([(1_000, b"key", value)])
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, bytes(batch))])]
    return ProduceRequest(acks=0, timeout_ms=1_000, topic_data=data)


async def end_offset(client: KafkaClient, topic: str) -> int:
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, -1)])])
    answer = await client.ask(request, 7, ListOffsetsResponse, timeout_s=30)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    return answer.topics[0].partitions[0].offset


def fetched_bytes(found: PartitionData) -> bytes:
    records = found.records or b""
    return b"".join(records) if isinstance(records, list | tuple) else bytes(cast("bytes", records))


async def stored_values(world: MovingWorld, name: str, start: int = 0) -> list[bytes]:
    """Values of all records from an offset on, which must have no gap."""
    values: list[bytes] = []
    offset = start
    while True:
        found = await world.fetch(name, offset)
        assert found.error_code == ErrorCode.NONE, ErrorCode(found.error_code)
        for batch in split_batches(memoryview(fetched_bytes(found))):
            assert batch.base_offset == offset
            values += [record.value or b"" for record in batch.records(1 << 20)]
            offset = batch.next_offset
        if offset >= found.high_watermark:
            return values


async def produce_acknowledged(world: MovingWorld, acknowledged: list[int], stopping: asyncio.Event) -> None:
    """Produce batches sequentially to the named leader; return the offsets."""
    at, sequence = world.leader(), 0
    while not stopping.is_set():
        answer = await world.produce(at, 1, producer_id=PRODUCER, sequence=sequence)
        if answer.error_code == ErrorCode.NONE:
            acknowledged.append(answer.base_offset)
            sequence += 1
        else:
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, answer.error_message
            assert answer.current_leader is not None
            at = world.cluster.broker_of(answer.current_leader.leader_id) or at
        await asyncio.sleep(PAUSE_S)


@pytest.mark.parametrize("wal", WalKind)
def test_moves_lose_only_acks_0_records_in_flight_on_a_closed_connection(
    wal: WalKind,
) -> None:
    async def story(world: MovingWorld) -> None:
        acknowledged: list[int] = []
        stopping = asyncio.Event()
        silent = SilentProducer(world)
        producing = asyncio.ensure_future(produce_acknowledged(world, acknowledged, stopping))
        sending = asyncio.ensure_future(silent.run())
        for _ in range(MOVES):
            target = world.other(world.leader())
            assert await world.move(target) == [ErrorCode.NONE]
            await world.until(lambda: world.moves() == 0 and world.serves_somewhere())
            assert world.leader() == target
            so_far = list(acknowledged)
            values = await stored_values(world, target)
            assert all(values[offset] == b"value-0" for offset in so_far)
            assert so_far == sorted(set(so_far))
            await asyncio.sleep(0.3)
        stopping.set()
        silent.stopping = True
        async with asyncio.timeout(60):
            await asyncio.gather(producing, sending)
        values = await stored_values(world, world.leader())
        assert [at for at, value in enumerate(values) if value == b"value-0"] == acknowledged
        assert len(acknowledged) > MOVES
        assert len(silent.connections) > MOVES // 2
        silent.check([value for value in values if value.startswith(b"silent")])

    MovingWorld(21, wal=wal).tell(story)


@pytest.mark.parametrize("wal", WalKind)
def test_a_topic_that_opens_slowly_stores_records_sent_with_acks_0(wal: WalKind) -> None:
    """Opening needs several calls of a store that takes up to two seconds for each: longer than
    `park_ms_max`.
    """

    async def story(world: MovingWorld) -> None:
        world.store_of_faults().latency_s = (1.0, 2.0)
        for number in range(4):
            topic = f"slow-{number}"
            await world.create(topic, 1)
            sent = 0
            while not sent:
                for name in world.cluster.brokers:
                    client = await world.new_client(name)
                    if await names_itself(world, client, name, topic):
                        for sent in range(1, 11):
                            await client.tell(silent_request(topic, b"value-%d" % sent), 10)
                        await world.until(lambda name=name: world.serves_somewhere(), 30)  # type: ignore[misc]
                        await asyncio.sleep(5)
                        assert not client.is_closed, "nothing was refused"
                        assert await end_offset(client, topic) == sent
                    await client.close()
                await asyncio.sleep(PAUSE_S)

    MovingWorld(22, wal=wal).tell(story)
