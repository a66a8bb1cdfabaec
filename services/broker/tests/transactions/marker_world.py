"""A sender of markers, the leaders that it sends to, and what passed between them, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from ponor_broker.peers.connection_order import ConnectionOrder, peer_client_id
from ponor_broker.peers.connection_pool import PeerConnections
from ponor_broker.transactions.marker_sender import (
    MARKERS_PER_REQUEST_MAX,
    NO_LEADER,
    MarkerSender,
    Refusals,
)
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode_as
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import decode_request_header
from ponor_kafka.message import Message
from ponor_kafka.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ponor_runtime.network import Connection
from ponor_runtime.runtime import Runtime
from ponor_simulation.simulation import Simulation

from services.broker.tests.peers.peer_kit import KAFKA, Directory, listening

HERE = 0
Where = tuple[str, int]
Sent = tuple[int, int, Where]
"""Producer id, producer epoch and partition of a marker; a test uses each epoch of a producer once."""


@dataclass(frozen=True)
class Ended:
    """Markers to send."""

    producer_id: int
    producer_epoch: int
    partitions: frozenset[Where]
    is_commit: bool = True
    is_generation_2: bool = True


@dataclass
class MarkerWorld:
    """Brokers 0 (with the sender), 1 and 2.

    Attributes:
        leaders: the truth; partitions that do not exist have no entry.
        image: what the sender sees of it.
        accepted: markers that the leader of their partition accepted, with repetitions, in order.
        sent: markers in requests, at the time of sending, with repetitions, in order.
        code: the answer of a leader to a marker.
    """

    seed: int = 1
    leaders: dict[Where, int] = field(default_factory=dict)
    image: dict[Where, int] = field(default_factory=dict)
    accepted: list[Sent] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    rows_sent: list[WriteTxnMarkersRequest] = field(default_factory=list)
    in_flight: Counter[int] = field(default_factory=Counter)
    code: Callable[[Sent], ErrorCode] = lambda _: ErrorCode.NONE
    latency_s: Callable[[], float] = lambda: 0.001

    def __post_init__(self) -> None:
        self.simulation = Simulation(self.seed)
        self.network = self.simulation.network
        self.directory = Directory({1: "b1", 2: "b2"})
        self.brokers = {
            node_id: self.simulation.process(f"b{node_id}", partial(self._leader, node_id))
            for node_id in (1, 2)
        }
        self.sender: MarkerSender
        self.pool: PeerConnections

    def put(self, where: Where, leader: int) -> None:
        """Let a broker lead a partition, and the image show it."""
        self.leaders[where] = self.image[where] = leader

    def leader_id(self, topic: str, index: int) -> int | None:
        return self.image.get((topic, index))

    def run(self, story: Callable[[MarkerWorld], Awaitable[None]]) -> None:
        """Run a story within the process of the sender."""
        over = asyncio.Event()

        async def main(runtime: Runtime) -> None:
            self.pool = PeerConnections(
                lambda address: self._connect(runtime, address),
                self.directory,
                runtime,
                client_id=lambda number: peer_client_id(HERE, 1, number),
            )
            self.telemetry = runtime.telemetry
            self.sender = MarkerSender(self.pool, self, self._local, runtime, node_id=HERE)
            self.sender.start()
            try:
                await story(self)
            finally:
                await self.sender.close()
                await self.pool.close()
                over.set()

        async def scenario() -> None:
            for broker in self.brokers.values():
                broker.start()
            await asyncio.sleep(0.1)
            here = self.simulation.process("b0", main)
            here.start()
            await over.wait()
            assert here.failure is None, here.failure
            assert not self.network.forgotten()

        self.simulation.run(scenario())

    async def send(
        self, ended: Ended, *, shard: int = 0, within_s: float = 1_000.0
    ) -> dict[Where, ErrorCode]:
        """Send markers and return what the sender reports."""
        reported: asyncio.Future[Refusals] = asyncio.get_running_loop().create_future()
        self.sender.send(shard, 5, ended, reported.set_result)
        assert not reported.done(), "never called before `send` returns"
        return dict(await asyncio.wait_for(reported, within_s))

    async def _connect(self, runtime: Runtime, address: str) -> Connection:
        host = address.partition(":")[0]
        return _Wire(self, int(host[1:]), await runtime.network.connect(address, KAFKA))

    async def _local(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.note_sent(HERE, request)
        try:
            return await self._append(HERE, request, lambda: True)
        finally:
            self.in_flight[HERE] -= 1

    async def _leader(self, node_id: int, runtime: Runtime) -> None:
        """The program of another broker."""
        order = ConnectionOrder()

        async def answer(request: Message, client_id: str | None) -> Message:
            assert isinstance(request, WriteTxnMarkersRequest)
            return await self._append(node_id, request, lambda: order.admits(client_id))

        await listening(f"b{node_id}", answer)(runtime)

    def note_sent(self, node_id: int, request: WriteTxnMarkersRequest) -> None:
        self.in_flight[node_id] += 1
        assert self.in_flight[node_id] == 1, "one request per broker"
        self.rows_sent.append(request)
        sent = _sent(request)
        assert len(sent) <= MARKERS_PER_REQUEST_MAX
        self.sent += sent

    async def _append(
        self, node_id: int, request: WriteTxnMarkersRequest, is_admitted: Callable[[], bool]
    ) -> WriteTxnMarkersResponse:
        is_admitted()
        results = []
        for row in request.markers:
            topics = []
            for topic in row.topics:
                partitions = []
                for index in topic.partition_indexes:
                    await asyncio.sleep(self.latency_s())
                    marker = (row.producer_id, row.producer_epoch, (topic.name, index))
                    code = self._judge(node_id, marker) if is_admitted() else ErrorCode.REQUEST_TIMED_OUT
                    partitions.append(WritableTxnMarkerPartitionResult(index, code))
                topics.append(WritableTxnMarkerTopicResult(topic.name, partitions))
            results.append(WritableTxnMarkerResult(row.producer_id, topics))
        await asyncio.sleep(self.latency_s())
        return WriteTxnMarkersResponse(results)

    def _judge(self, node_id: int, marker: Sent) -> ErrorCode:
        leader = self.leaders.get(marker[2])
        if leader is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if leader != node_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        code = self.code(marker)
        if code is ErrorCode.NONE:
            self.accepted.append(marker)
        return code


class _Wire:
    """A connection that reports what the sender sends, at that moment."""

    def __init__(self, world: MarkerWorld, node_id: int, wire: Connection) -> None:
        self._world = world
        self._node_id = node_id
        self._wire = wire
        self._is_asked = False

    async def send(self, frame: bytes) -> None:
        header = decode_request_header(frame)
        assert header.api_key == ApiKey.WRITE_TXN_MARKERS
        request, _ = decode_as(WriteTxnMarkersRequest, header.api_version, frame, header.body_position)
        self._world.note_sent(self._node_id, request)
        self._is_asked = True
        await self._wire.send(frame)

    def try_send(self, frame: bytes) -> bool:
        return self._wire.try_send(frame)

    async def receive(self) -> bytes:
        frame = await self._wire.receive()
        self._settle()
        return frame

    async def close(self) -> None:
        self._settle()
        await self._wire.close()

    def _settle(self) -> None:
        if self._is_asked:
            self._is_asked = False
            self._world.in_flight[self._node_id] -= 1


def _sent(request: WriteTxnMarkersRequest) -> list[Sent]:
    return [
        (row.producer_id, row.producer_epoch, (topic.name, index))
        for row in request.markers
        for topic in row.topics
        for index in topic.partition_indexes
    ]


__all__ = ["HERE", "NO_LEADER", "Ended", "MarkerWorld", "Sent", "Where"]


def all_of(ended: Ended) -> list[Sent]:
    return [(ended.producer_id, ended.producer_epoch, where) for where in sorted(ended.partitions)]
