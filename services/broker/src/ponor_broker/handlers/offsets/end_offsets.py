"""The ends of partitions, wherever their leaders are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

from ponor_broker.coordination.ports import TopicDirectory
from ponor_broker.handlers.offsets.list_offsets import LATEST, ListOffsetsHandler
from ponor_broker.peers.connection_pool import PeerConnections, PeerUnavailableError
from ponor_broker.peers.request_port import RequestPort, UnansweredError
from ponor_broker.requests.bounded_gather import bounded_gather

VERSION: Final = 7
"""Every broker that this cluster has had supports this version of ListOffsets."""
BROKERS_TOGETHER_MAX: Final = 16
"""Brokers that are asked at a time."""
_CONSUMER: Final = -1
"""Replica id of a request that is not from a follower."""

TopicPartition: TypeAlias = tuple[str, int]
EndOffsets: TypeAlias = Mapping[TopicPartition, int | ErrorCode]


class EndOffsetFinder:
    """Sends one ListOffsets to each leader, once: the client repeats its request after an error."""

    def __init__(
        self,
        peers: PeerConnections,
        topics: TopicDirectory,
        local: ListOffsetsHandler,
        *,
        node_id: int,
    ) -> None:
        self._topics = topics
        self._local = local
        self._port: RequestPort[ListOffsetsRequest, ListOffsetsResponse] = RequestPort(
            peers, self._ask_here, node_id=node_id, version=VERSION, answer=ListOffsetsResponse
        )

    async def find(self, partitions: Iterable[TopicPartition]) -> EndOffsets:
        """Return the high watermark of each partition, or the error."""
        found: dict[TopicPartition, int | ErrorCode] = {}
        led: dict[int, list[TopicPartition]] = {}
        for topic, index in partitions:
            leader = self._topics.leader(topic, index)
            if leader is None:
                found[topic, index] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                led.setdefault(leader.node_id, []).append((topic, index))
        parts = await bounded_gather(
            (self._of_leader(node_id, own) for node_id, own in led.items()),
            together_max=BROKERS_TOGETHER_MAX,
        )
        for part in parts:
            found |= part
        return found

    async def _of_leader(self, node_id: int, partitions: Collection[TopicPartition]) -> EndOffsets:
        request = _request(partitions)
        try:
            answer = await self._port.ask(node_id, lambda: request)
        except (PeerUnavailableError, UnansweredError):
            return dict.fromkeys(partitions, ErrorCode.LEADER_NOT_AVAILABLE)
        assert answer is not None
        found = {
            (topic.name, row.partition_index): ErrorCode(row.error_code) if row.error_code else row.offset
            for topic in answer.topics
            for row in topic.partitions
        }
        return {each: found.get(each, ErrorCode.UNKNOWN_SERVER_ERROR) for each in partitions}

    async def _ask_here(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        return await self._local.answer(request, VERSION)


def _request(partitions: Iterable[TopicPartition]) -> ListOffsetsRequest:
    rows: dict[str, list[ListOffsetsPartition]] = {}
    for topic, index in partitions:
        rows.setdefault(topic, []).append(ListOffsetsPartition(index, timestamp=LATEST))
    return ListOffsetsRequest(_CONSUMER, topics=[ListOffsetsTopic(name, each) for name, each in rows.items()])
