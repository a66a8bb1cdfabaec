"""CreatePartitions: adds partitions to a topic (KIP-195).

Checks assignments and duplicates; the controller counts and places.
"""

from __future__ import annotations

from collections import Counter

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

from ponor_broker.handlers.topics.manual_assignment import check_replicas
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import ApiHandler, RequestContext
from ponor_broker.requests.bounded_gather import bounded_gather


class CreatePartitionsHandler:
    """Sends one operation per topic."""

    def __init__(self, topics: Topics, admin: TopicAdmin) -> None:
        self._topics = topics
        self._admin = admin

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.CREATE_PARTITIONS, 0, 3, self.handle)

    async def handle(
        self, request: CreatePartitionsRequest, context: RequestContext
    ) -> CreatePartitionsResponse:
        """Return one result per topic; a topic that is named twice is refused."""
        del context
        times = Counter(topic.name for topic in request.topics)
        repeated = [
            CreatePartitionsTopicResult(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            for name, count in times.items()
            if count > 1
        ]
        results = await bounded_gather(
            self._create(topic, request) for topic in request.topics if times[topic.name] == 1
        )
        return CreatePartitionsResponse(results=[*repeated, *results])

    async def _create(
        self, wanted: CreatePartitionsTopic, request: CreatePartitionsRequest
    ) -> CreatePartitionsTopicResult:
        topic = self._topics.by_name(wanted.name)
        if topic is None:
            return CreatePartitionsTopicResult(wanted.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        present = len(self._topics.partitions(topic.topic_id))
        try:
            if wanted.assignments is not None and wanted.count > present:
                self._check_assignments(wanted, wanted.count - present)
            await self._admin.create_partitions(
                topic.topic_id,
                wanted.count,
                validate_only=request.validate_only,
                deadline_ms=max(request.timeout_ms, 1),
            )
        except PartitionError as error:
            return CreatePartitionsTopicResult(wanted.name, error.code, str(error))
        return CreatePartitionsTopicResult(wanted.name)

    def _check_assignments(self, wanted: CreatePartitionsTopic, added: int) -> None:
        assignments = wanted.assignments or ()
        if len(assignments) != added:
            raise PartitionError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), "
                f"but only {len(assignments)} assignment(s) were specified.",
            )
        for assignment in assignments:
            check_replicas(assignment.broker_ids, self._topics)
