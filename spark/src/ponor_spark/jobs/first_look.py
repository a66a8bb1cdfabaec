"""Check the cluster's address and the topic's name before Spark starts, which takes half a minute.

The checks need no snapshot and no gRPC, whose threads must not exist when Spark forks. The source checks
everything again when it opens its snapshot, because the answers may change.
"""

from __future__ import annotations

import socket  # noqa: TID251 - a command waits for the answer; it has no event loop
from collections.abc import Mapping, Sequence
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ponor_runtime.host_port import split_host_port

from ponor_spark.cluster_address import find_cluster
from ponor_spark.errors import ClusterUnreachableError
from ponor_spark.kafka_client import METADATA_VERSION, NoBrokerError, ask_first
from ponor_spark.options import Options
from ponor_spark.topics import Assign, Subscribe, TopicChoice, chosen_partitions

CONNECT_S_MAX: Final = 10.0
ABSENT: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)


def look(options: Options) -> None:
    """Find the cluster and check the topics. If no broker answers, a controller must accept connections, and
    topics are not checked: objects are readable without brokers.

    Raises:
        OptionError: the directory has no cluster.
        ClusterUnreachableError: no controller accepts connections.
        TopicMissingError: a topic or a partition does not exist.
    """
    address = find_cluster(options.cluster)
    names = _names(options.topics)
    counts = _partition_counts(address.brokers, names)
    if counts is None:
        _expect_a_controller(address.controllers)
    elif names:
        chosen_partitions(options.topics, counts)


def _names(choice: TopicChoice) -> Sequence[str]:
    """Return the topics that must exist; a pattern may match none."""
    match choice:
        case Assign(partitions):
            return tuple(partitions)
        case Subscribe(topics):
            return topics
    return ()


def _partition_counts(brokers: Sequence[str], names: Sequence[str]) -> Mapping[str, int] | None:
    """Return the partitions of existing topics from the first broker that answers; None if none answers or
    knows them.
    """
    request = MetadataRequest(
        [MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    try:
        answer = ask_first(
            brokers, lambda connection: connection.call(request, METADATA_VERSION, MetadataResponse)
        )
    except NoBrokerError:
        return None
    known = [topic for topic in answer.topics if topic.error_code not in ABSENT]
    if any(topic.error_code != ErrorCode.NONE for topic in known):
        return None
    return {topic.name or "": len(topic.partitions) for topic in known}


def _expect_a_controller(controllers: Sequence[str]) -> None:
    reason = "no address is given"
    for address in controllers:
        try:
            socket.create_connection(split_host_port(address), timeout=CONNECT_S_MAX).close()
        except OSError as error:
            reason = str(error)
        else:
            return
    raise ClusterUnreachableError(
        f"controllers: no answer from {', '.join(controllers)} ({reason}); is the cluster running, and are"
        " they reachable from the driver?"
    )
