"""CreateTopics.

Checks assignments and duplicates; the controller checks names, counts and configs. Each topic is
one operation, so a refused topic does not delay the others.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from ponor_kafka.configs.changes import checked_topic_configs
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

from ponor_broker.configs.description import ConfigDescriptions
from ponor_broker.handlers.topics.manual_assignment import check_replicas
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.bounded_gather import bounded_gather

UNSET: Final = -1
SHOWN_FACTOR: Final = 1
METADATA_TOPIC: Final = "__cluster_metadata"


class CreateTopicsHandler:
    """Sends one operation per topic. `num_partitions` applies to topics without a count; -1: the
    controller's default.
    """

    def __init__(
        self, topics: Topics, admin: TopicAdmin, descriptions: ConfigDescriptions, *, num_partitions: int
    ) -> None:
        self._topics = topics
        self._num_partitions = num_partitions
        self._admin = admin
        self._descriptions = descriptions

    async def handle(self, request: CreateTopicsRequest, _: RequestContext) -> CreateTopicsResponse:
        """Return one result per topic; a topic that is named twice is refused."""
        times = Counter(topic.name for topic in request.topics)
        results = await bounded_gather(
            self._create(topic, request) for topic in request.topics if times[topic.name] == 1
        )
        repeated = [
            _refused(name, PartitionError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
            for name, count in times.items()
            if count > 1
        ]
        return CreateTopicsResponse(topics=[*results, *repeated])

    async def _create(self, topic: CreatableTopic, request: CreateTopicsRequest) -> CreatableTopicResult:
        try:
            if topic.name == METADATA_TOPIC:
                raise PartitionError(
                    ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited."
                )
            partitions, factor = self._counts(topic)
            configs = _configs(topic)
            created = await self._admin.create(
                topic.name,
                partitions=partitions,
                replication_factor=factor,
                configs=configs,
                validate_only=request.validate_only,
                deadline_ms=max(request.timeout_ms, 1),
            )
        except PartitionError as error:
            return _refused(topic.name, error)
        return CreatableTopicResult(
            name=topic.name,
            topic_id=created.topic_id or bytes(16),
            error_message=None,
            num_partitions=created.partitions,
            replication_factor=SHOWN_FACTOR,
            configs=[
                CreatableTopicConfigs(each.name, each.value, each.read_only, each.source, each.is_sensitive)
                for each in self._descriptions.of_topic(checked_topic_configs(configs))
            ],
        )

    def _counts(self, topic: CreatableTopic) -> tuple[int, int]:
        """Return partitions and replication factor, from the counts or the manual assignment. The
        controller places the partitions.

        Raises:
            PartitionError: both are given, or the assignment is not 0, 1, 2, … with valid replicas.
        """
        if not topic.assignments:
            unset = topic.num_partitions == UNSET
            return self._num_partitions if unset else topic.num_partitions, topic.replication_factor
        for what, value in (
            ("replication factor", topic.replication_factor),
            ("numPartitions", topic.num_partitions),
        ):
            if value != UNSET:
                raise PartitionError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        indices: dict[int, None] = {}
        for assignment in topic.assignments:
            if assignment.partition_index in indices:
                raise PartitionError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Found multiple manual partition assignments for partition {assignment.partition_index}",
                )
            check_replicas(assignment.broker_ids, self._topics)
            indices[assignment.partition_index] = None
        if sorted(indices) != list(range(len(indices))):
            raise PartitionError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )
        return len(indices), len(topic.assignments[0].broker_ids)


def _configs(topic: CreatableTopic) -> dict[str, str]:
    """Return a topic's configs. If a config is given twice, the last value counts, as in Kafka.

    Raises:
        PartitionError: a null value.
    """
    null = [config.name for config in topic.configs if config.value is None]
    if null:
        raise PartitionError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(null)}"
        )
    return {config.name: config.value for config in topic.configs if config.value is not None}


def _refused(name: str, error: PartitionError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=str(error))
