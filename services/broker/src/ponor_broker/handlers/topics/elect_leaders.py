"""ElectLeaders (KIP-460): only the answer; no election takes place.

A partition has one replica, its leader, so no election is needed. If the leader is unavailable, no other
broker can lead until the controller reassigns the partition. If a partition moves, the preferred leader is
the target, which is elected when the source has closed the streams.
"""

from __future__ import annotations

from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ponor_metadata.nouns.topics import MOVES
from ponor_runtime.turns import turn

from ponor_broker.partitions.errors import cut_message
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.request_rows import check_rows

ELECTION_TYPES: Final = (0, 1)
"""Preferred, unclean."""
ROWS_PER_TURN: Final = 1_000


async def elect_leaders(
    topics: Topics, request: ElectLeadersRequest, _: RequestContext
) -> ElectLeadersResponse:
    """Return a result per requested partition; for null, an empty result per topic."""
    if request.topic_partitions is None:
        return ElectLeadersResponse(
            replica_election_results=[ReplicaElectionResult(row.name) for row in topics.all()]
        )
    check_rows(sum(len(wanted.partitions) for wanted in request.topic_partitions))
    if request.election_type in ELECTION_TYPES:
        error_code, refusal = ErrorCode.NONE, None
    else:
        error_code, refusal = ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
    results: list[ReplicaElectionResult] = []
    for wanted in request.topic_partitions:
        rows: list[PartitionResult] = []
        for number, index in enumerate(wanted.partitions, 1):
            if refusal is None:
                rows.append(_elect(topics, wanted.topic, index))
            else:
                rows.append(PartitionResult(index, error_code, refusal))
            if number % ROWS_PER_TURN == 0:
                await turn()
        results.append(ReplicaElectionResult(wanted.topic, rows))
    return ElectLeadersResponse(error_code=error_code, replica_election_results=results)


def _elect(topics: Topics, topic: str, index: int) -> PartitionResult:
    row = topics.by_name(topic)
    if row is None:
        return PartitionResult(
            index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, cut_message(f"No such topic as {topic}")
        )
    partition = topics.partition(row.topic_id, index)
    if partition is None:
        return PartitionResult(
            index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}"
        )
    move = topics.image[MOVES].get((row.topic_id, index))
    if move is not None:
        return PartitionResult(
            index,
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"{topic}-{index} is moving to broker {move.target_id}, which is elected when broker"
            f" {move.source_id} has closed the streams.",
        )
    if topics.broker(partition.leader_id) is None:
        return PartitionResult(
            index,
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"Broker {partition.leader_id} leads {topic}-{index} and is unavailable.",
        )
    return PartitionResult(
        index, ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    )
