"""ListConfigResources (KIP-1142): topics and brokers have configs; the other types have none."""

from __future__ import annotations

from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

from ponor_broker.handlers.configs.config_resources import ResourceType
from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import ApiHandler, RequestContext

KNOWN: Final = frozenset(int(kind) for kind in ResourceType)


class ListConfigResourcesHandler:
    """Answers from the image."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, self.handle)

    async def handle(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse:
        """List resources of the requested types, or of all. Version 0 lists client metrics only."""
        if context.api_version == 0:
            return ListConfigResourcesResponse()
        wanted = list(request.resource_types) or list(ResourceType)
        if not KNOWN.issuperset(wanted):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        resources: list[ConfigResource] = []
        if ResourceType.BROKER in wanted:
            resources += [
                ConfigResource(str(broker.node_id), ResourceType.BROKER) for broker in self._topics.brokers()
            ]
        if ResourceType.TOPIC in wanted:
            resources += [ConfigResource(topic.name, ResourceType.TOPIC) for topic in self._topics.all()]
        return ListConfigResourcesResponse(config_resources=resources)
