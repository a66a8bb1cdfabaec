"""Resources that have settings, as the config APIs name them.

What lives here: their types, and the checks of names that describing and altering share, with Kafka's messages.
"""

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
    """Refuse what cannot be a topic's name.

    Raises:
        PartitionError: INVALID_TOPIC_EXCEPTION.
    """
    problem = name_problem(name)
    if problem is not None:
        raise PartitionError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def require_broker(name: str, node_id: int, *, or_what: str = "") -> None:
    """Refuse what is not this broker: its settings are its own to tell.

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
