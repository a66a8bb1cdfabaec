"""CreateTopics: topics that an administrator asks for.

What lives here: the request's own rules (assignments, duplicates) and the answer. Names, counts and settings are checked by the controller, with
one operation per topic: a refused topic does not hold up the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

from ponor_broker.handlers.registry import ApiHandler, RequestContext
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topic_admin import TopicAdmin

UNSET: Final = -1
SHOWN_FACTOR: Final = 1
DYNAMIC_TOPIC_CONFIG: Final = 1


class CreateTopicsHandler:
    """Asks the controller."""

    def __init__(self, admin: TopicAdmin) -> None:
        self._admin = admin

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.CREATE_TOPICS, 2, 7, self.handle)

    async def handle(self, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
        """One result per topic."""
        del context
        times = Counter(topic.name for topic in request.topics)
        results = await asyncio.gather(
            *(
                self._create(topic, request)
                for topic in {topic.name: topic for topic in request.topics}.values()
                if times[topic.name] == 1
            )
        )
        repeated = [
            _refused(name, ErrorCode.INVALID_REQUEST, f"topic {name!r} stands {count} times in the request")
            for name, count in times.items()
            if count > 1
        ]
        return CreateTopicsResponse(topics=[*results, *repeated])

    async def _create(self, topic: CreatableTopic, request: CreateTopicsRequest) -> CreatableTopicResult:
        try:
            partitions, factor = _counts(topic)
            configs = {config.name: config.value for config in topic.configs if config.value is not None}
            created = await self._admin.create(
                topic.name,
                partitions=partitions,
                replication_factor=factor,
                configs=configs,
                validate_only=request.validate_only,
                deadline_ms=max(request.timeout_ms, 1),
            )
        except PartitionError as error:
            return _refused(topic.name, error.code, str(error))
        return CreatableTopicResult(
            name=topic.name,
            topic_id=created.topic_id or bytes(16),
            num_partitions=created.partitions,
            replication_factor=SHOWN_FACTOR,
            configs=[
                CreatableTopicConfigs(name=name, value=value, config_source=DYNAMIC_TOPIC_CONFIG)
                for name, value in configs.items()
            ],
        )


def _counts(topic: CreatableTopic) -> tuple[int, int]:
    """Partitions and replication factor, from the counts or from a manual assignment; where a partition goes is not the client's choice.

    Raises:
        PartitionError: both are given, or the assignment is not 0, 1, 2 ... with as many replicas each.
    """
    if not topic.assignments:
        return topic.num_partitions, topic.replication_factor
    if topic.num_partitions != UNSET or topic.replication_factor != UNSET:
        raise PartitionError(
            ErrorCode.INVALID_REQUEST,
            "with a manual assignment, partitions and replication factor must be -1",
        )
    indices = sorted(assignment.partition_index for assignment in topic.assignments)
    factors = {len(assignment.broker_ids) for assignment in topic.assignments}
    if indices != list(range(len(indices))) or len(factors) != 1 or 0 in factors:
        raise PartitionError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "a manual assignment names partitions 0, 1, 2, ... with equally many replicas",
        )
    return len(indices), factors.pop()


def _refused(name: str, code: ErrorCode, message: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message)
