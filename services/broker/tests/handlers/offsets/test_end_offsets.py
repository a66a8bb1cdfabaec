"""The ends of partitions at this broker, at another one, and at leaders that do not answer."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, cast

from ponor_broker.handlers.offsets.end_offsets import EndOffsetFinder, EndOffsets
from ponor_broker.handlers.offsets.list_offsets import LATEST, ListOffsetsHandler
from ponor_broker.peers.connection_pool import PeerConnections
from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import Message
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ponor_runtime.runtime import Runtime
from ponor_simulation.simulation import Simulation

from services.broker.tests.peers.peer_kit import KAFKA, Directory, listening

HERE, THERE, DOWN = 1, 2, 3


class Leader(NamedTuple):
    node_id: int


class Leaders:
    """Partition 0 is led here, 1 and 2 there, 3 by a broker that is down; others have no leader."""

    def leader(self, _topic: str, index: int) -> Leader | None:
        node_id = {0: HERE, 1: THERE, 2: THERE, 3: DOWN}.get(index)
        return None if node_id is None else Leader(node_id)


def ends_of(request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Answer that partition n ends at 100 + n, and that this broker does not lead partition 2."""
    topics = []
    for topic in request.topics:
        assert all(row.timestamp == LATEST for row in topic.partitions)
        rows = [
            ListOffsetsPartitionResponse(row.partition_index, offset=100 + row.partition_index)
            for row in topic.partitions
        ]
        for row in rows:
            if row.partition_index == 2:
                row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        topics.append(ListOffsetsTopicResponse(topic.name, rows))
    return ListOffsetsResponse(topics=topics)


class Local:
    """The handler of this broker."""

    async def answer(self, request: ListOffsetsRequest, _version: int) -> ListOffsetsResponse:
        return ends_of(request)


def test_every_partition_gets_its_end_or_an_error() -> None:
    simulation = Simulation(1)
    found: list[EndOffsets] = []
    over = asyncio.Event()

    async def answer(request: Message, _: str | None) -> Message:
        assert isinstance(request, ListOffsetsRequest)
        return ends_of(request)

    async def main(runtime: Runtime) -> None:
        async def connect(address: str) -> Any:
            return await runtime.network.connect(address, KAFKA)

        directory = Directory({THERE: "there", DOWN: "down"})
        pool = PeerConnections(connect, directory, runtime, client_id=str)
        finder = EndOffsetFinder(
            pool, cast("Any", Leaders()), cast("ListOffsetsHandler", Local()), node_id=HERE
        )
        found.append(await finder.find([("t", index) for index in range(5)]))
        await pool.close()
        over.set()

    async def scenario() -> None:
        simulation.process("there", listening("there", answer)).start()
        await asyncio.sleep(0.1)
        simulation.process("here", main).start()
        await over.wait()

    simulation.run(scenario())
    assert found == [
        {
            ("t", 0): 100,
            ("t", 1): 101,
            ("t", 2): ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ("t", 3): ErrorCode.LEADER_NOT_AVAILABLE,
            ("t", 4): ErrorCode.LEADER_NOT_AVAILABLE,
        }
    ]
