"""CreatePartitions: adds partitions to a topic (KIP-195).

Checks assignments and duplicates; the controller checks the counts and places the partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

from ponor_broker.handlers.topics.manual_assignment import check_replicas
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.bounded_gather import bounded_gather


async def create_partitions(
    topics: Topics, admin: TopicAdmin, request: CreatePartitionsRequest, _: RequestContext
) -> CreatePartitionsResponse:
    """Send one operation per topic; return one result per topic. A topic that is named twice is refused."""
    times = Counter(topic.name for topic in request.topics)
    repeated = [
        CreatePartitionsTopicResult(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        for name, count in times.items()
        if count > 1
    ]
    results = await bounded_gather(
        _create(topics, admin, topic, request) for topic in request.topics if times[topic.name] == 1
    )
    return CreatePartitionsResponse(results=[*repeated, *results])


async def _create(
    topics: Topics, admin: TopicAdmin, wanted: CreatePartitionsTopic, request: CreatePartitionsRequest
) -> CreatePartitionsTopicResult:
    topic = topics.by_name(wanted.name)
    if topic is None:
        return CreatePartitionsTopicResult(wanted.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    added = wanted.count - len(topics.partitions(topic.topic_id))
    try:
        if wanted.assignments is not None and added > 0:
            _check_assignments(wanted.assignments, added, topics)
        await admin.create_partitions(
            topic.topic_id,
            wanted.count,
            validate_only=request.validate_only,
            deadline_ms=max(request.timeout_ms, 1),
        )
    except PartitionError as error:
        return CreatePartitionsTopicResult(wanted.name, error.code, str(error))
    return CreatePartitionsTopicResult(wanted.name)


def _check_assignments(assignments: Sequence[CreatePartitionsAssignment], added: int, topics: Topics) -> None:
    if len(assignments) != added:
        raise PartitionError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), "
            f"but only {len(assignments)} assignment(s) were specified.",
        )
    for assignment in assignments:
        check_replicas(assignment.broker_ids, topics)
