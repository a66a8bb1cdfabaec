"""Resources of the config APIs: types, and checks of names with Kafka's messages."""

from __future__ import annotations

from enum import IntEnum

from ponor_kafka.errors import ErrorCode

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topic_names import name_problem


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
    """Refuse any broker but this one: a broker only describes and changes its own configs.

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
