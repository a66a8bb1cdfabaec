"""ElectLeaders: elections where there is hardly anybody to elect (KIP-460).

What lives here: the answer. A partition has one replica, its leader, so that no election is needed; where the leader is away, nobody can stand in
for it until the controller gives the partition to another broker. Of a partition that moves the preferred leader is the broker that gets it: it is
elected as soon as the present one has closed the streams, whoever asks.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ponor_metadata.nouns.topics import MOVES

from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import ApiHandler, RequestContext

ELECTION_TYPES: Final = (0, 1)
"""Preferred, unclean."""


class ElectLeadersHandler:
    """Answers from the image."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.ELECT_LEADERS, 0, 2, self.handle)

    async def handle(self, request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
        """A result per partition asked for; null asks for all, and of those only what was done is told: nothing."""
        del context
        if request.topic_partitions is None:
            return ElectLeadersResponse(
                replica_election_results=[ReplicaElectionResult(row.name) for row in self._topics.all()]
            )
        is_known = request.election_type in ELECTION_TYPES
        results = [
            ReplicaElectionResult(
                wanted.topic,
                [
                    self._elect(wanted.topic, index)
                    if is_known
                    else PartitionResult(
                        index, ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
                    )
                    for index in wanted.partitions
                ],
            )
            for wanted in request.topic_partitions
        ]
        return ElectLeadersResponse(
            error_code=ErrorCode.NONE if is_known else ErrorCode.INVALID_REQUEST,
            replica_election_results=results,
        )

    def _elect(self, topic: str, index: int) -> PartitionResult:
        row = self._topics.by_name(topic)
        if row is None:
            return PartitionResult(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}")
        partition = self._topics.partition(row.topic_id, index)
        if partition is None:
            return PartitionResult(
                index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}"
            )
        move = self._topics.image[MOVES].get((row.topic_id, index))
        if move is not None:
            return PartitionResult(
                index,
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"{topic}-{index} is on its way to broker {move.target_id}, which is elected once broker {move.source_id} has closed it.",
            )
        if self._topics.broker(partition.leader_id) is None:
            return PartitionResult(
                index,
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"Broker {partition.leader_id} leads {topic}-{index} and is away.",
            )
        return PartitionResult(
            index, ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        )
