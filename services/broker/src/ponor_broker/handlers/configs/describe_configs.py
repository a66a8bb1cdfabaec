"""DescribeConfigs: every config of a topic, a group or this broker: value, source, documentation
(KIP-133, KIP-226, KIP-569, KIP-848).

Tools that have only a bootstrap address find the controllers and the object store here
(`ponor.controllers`, `ponor.object.store`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from ponor_runtime.turns import Steps, Turns

from ponor_broker.configs.description import ConfigDescription, ConfigDescriptions
from ponor_broker.handlers.configs.config_resources import ResourceType, require_broker, require_topic_name
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import RequestContext

ROWS_PER_STEP: Final = 500
"""Number of settings after which the handler yields to the event loop. A resource is never split, so a step
may describe more.
"""


class DescribeConfigsHandler:
    """Answers from the descriptions and the image."""

    def __init__(self, topics: Topics, descriptions: ConfigDescriptions, *, node_id: int) -> None:
        self._topics = topics
        self._descriptions = descriptions
        self._node_id = node_id
        self._turns = Turns()

    async def handle(self, request: DescribeConfigsRequest, _: RequestContext) -> DescribeConfigsResponse:
        """Return one result per resource."""
        # Each resource once: a request may name the broker, with its hundreds of settings, a million times.
        wanted = {(each.resource_type, each.resource_name): each for each in request.resources}
        return DescribeConfigsResponse(
            results=await self._turns.run_short(self._results(wanted.values(), request))
        )

    def _results(
        self, resources: Iterable[DescribeConfigsResource], request: DescribeConfigsRequest
    ) -> Steps[list[DescribeConfigsResult]]:
        results: list[DescribeConfigsResult] = []
        rows = 0
        for resource in resources:
            result = self._result(resource, request)
            results.append(result)
            rows += 1 + len(result.configs)
            if rows >= ROWS_PER_STEP:
                rows = 0
                yield
        return results

    def _result(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest
    ) -> DescribeConfigsResult:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        try:
            described = self._describe(resource)
        except PartitionError as error:
            result.error_code, result.error_message = error.code, str(error) or None
            return result
        keys = frozenset(resource.configuration_keys or ())
        result.configs = [_entry(each, request) for each in described if not keys or each.name in keys]
        return result

    def _describe(self, resource: DescribeConfigsResource) -> Iterable[ConfigDescription]:
        """Describe one resource.

        Raises:
            PartitionError: the resource does not exist, or is another broker.
        """
        name = resource.resource_name
        if resource.resource_type == ResourceType.TOPIC:
            require_topic_name(name)
            topic = self._topics.by_name(name)
            if topic is None:
                raise PartitionError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
            return self._descriptions.of_topic(topic.configs)
        if resource.resource_type == ResourceType.BROKER:
            if name == "":
                return self._descriptions.of_all_brokers()
            require_broker(name, self._node_id, or_what=" or empty string")
            return self._descriptions.of_broker()
        if resource.resource_type == ResourceType.GROUP:
            if name == "":
                raise PartitionError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return self._descriptions.of_group(self._topics.group_configs(name))
        raise PartitionError(
            ErrorCode.INVALID_REQUEST, f"configs of resource type {resource.resource_type} are not supported"
        )


def _entry(described: ConfigDescription, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=described.name,
        value=described.value,
        read_only=described.read_only,
        config_source=described.source,
        is_sensitive=described.is_sensitive,
        synonyms=[DescribeConfigsSynonym(*each) for each in described.synonyms]
        if request.include_synonyms
        else [],
        config_type=described.type,
        documentation=described.doc if request.include_documentation else None,
    )
