"""DescribeConfigs: the settings of this broker, and those of topics that have an effect.

What lives here: the answer from settings and image, read-only. Tools that were given only a bootstrap address learn here where the cluster's
controllers and its object store are (`ponor.controllers`, `ponor.object.store`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

from ponor_broker.handlers.registry import ApiHandler, RequestContext
from ponor_broker.partitions.topic_config import TopicConfig, kafka_configs
from ponor_broker.partitions.topics import Topics

TOPIC: Final = 2
BROKER: Final = 4
SOURCE_TOPIC: Final = 1
SOURCE_STATIC_BROKER: Final = 4
SOURCE_DEFAULT: Final = 5


class DescribeConfigsHandler:
    """Answers from what it was given and from the image."""

    def __init__(
        self, topics: Topics, *, node_id: int, broker_configs: Mapping[str, str], topic_defaults: TopicConfig
    ) -> None:
        self._topics = topics
        self._node_id = node_id
        self._broker_configs = dict(broker_configs)
        self._topic_defaults = topic_defaults

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.DESCRIBE_CONFIGS, 1, 4, self.handle)

    async def handle(
        self, request: DescribeConfigsRequest, context: RequestContext
    ) -> DescribeConfigsResponse:
        """One result per resource asked for."""
        del context
        return DescribeConfigsResponse(results=[self._describe(resource) for resource in request.resources])

    def _describe(self, resource: DescribeConfigsResource) -> DescribeConfigsResult:
        name = resource.resource_name
        if resource.resource_type == BROKER:
            if name not in {"", str(self._node_id)}:
                return _refused(resource, ErrorCode.INVALID_REQUEST, f"this is broker {self._node_id}")
            rows = ((key, value, SOURCE_STATIC_BROKER) for key, value in self._broker_configs.items())
            return _described(resource, rows)
        if resource.resource_type == TOPIC:
            topic = self._topics.by_name(name)
            if topic is None:
                return _refused(resource, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
            values = {**kafka_configs(self._topic_defaults), **topic.configs}
            rows = (
                (key, value, SOURCE_TOPIC if key in topic.configs else SOURCE_DEFAULT)
                for key, value in values.items()
            )
            return _described(resource, rows)
        return _refused(
            resource,
            ErrorCode.INVALID_REQUEST,
            f"resource type {resource.resource_type} is not described here",
        )


def _described(
    resource: DescribeConfigsResource, rows: Iterable[tuple[str, str, int]]
) -> DescribeConfigsResult:
    wanted: Sequence[str] | None = resource.configuration_keys
    configs = [
        DescribeConfigsResourceResult(
            name=name,
            value=value,
            read_only=source == SOURCE_STATIC_BROKER,
            config_source=source,
            is_sensitive=False,
        )
        for name, value, source in rows
        if wanted is None or name in wanted
    ]
    return DescribeConfigsResult(
        error_code=0,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _refused(resource: DescribeConfigsResource, code: ErrorCode, message: str) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[],
    )
