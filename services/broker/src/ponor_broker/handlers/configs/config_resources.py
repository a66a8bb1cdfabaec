"""Resources of the config APIs: types, checks of names with Kafka's messages, and
ListConfigResources (KIP-1142).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topics import Topics, name_problem
from ponor_broker.requests.api_handler import RequestContext


class ResourceType(IntEnum):
    """Numbers of org.apache.kafka.common.config.ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def require_topic_name(name: str) -> None:
    """Refuse an invalid topic name.

    Raises:
        PartitionError: INVALID_TOPIC_EXCEPTION.
    """
    problem = name_problem(name)
    if problem is not None:
        raise PartitionError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def require_broker(name: str, node_id: int, *, or_what: str = "") -> None:
    """Refuse requests about other brokers: a broker describes and changes only its own configs.

    Raises:
        PartitionError: INVALID_REQUEST.
    """
    if not name.removeprefix("-").isdecimal():
        raise PartitionError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if int(name) != node_id:
        raise PartitionError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {node_id}{or_what}, but received {name}",
        )


KNOWN: Final = frozenset(int(kind) for kind in ResourceType)


async def list_config_resources(
    topics: Topics, request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    """List resources of the requested types, or of all. Only groups with configs of their own
    are listed. The other types have no configs. Version 0 lists client metrics only.
    """
    if context.api_version == 0:
        return ListConfigResourcesResponse()
    wanted = list(request.resource_types) or list(ResourceType)
    if not KNOWN.issuperset(wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    resources: list[ConfigResource] = []
    if ResourceType.BROKER in wanted:
        resources += [ConfigResource(str(broker.node_id), ResourceType.BROKER) for broker in topics.brokers()]
    if ResourceType.TOPIC in wanted:
        resources += [ConfigResource(topic.name, ResourceType.TOPIC) for topic in topics.all()]
    if ResourceType.GROUP in wanted:
        resources += [ConfigResource(name, ResourceType.GROUP) for name in topics.groups_with_configs()]
    return ListConfigResourcesResponse(config_resources=resources)
