"""Metadata, DescribeCluster, DescribeTopicPartitions."""

from __future__ import annotations

from ponor_kafka.messages.describe_cluster import DescribeClusterRequest
from ponor_kafka.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    TopicRequest,
)
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic

from tests.oracle.narrator import Narrator, Topic
from tests.oracle.story import story

NO_ID = bytes(16)
UNKNOWN_ID = bytes(range(16))


def about(*topics: Topic, create: bool = False, authorized: bool = False) -> MetadataRequest:
    wanted = [MetadataRequestTopic(topic.id, topic.name) for topic in topics]
    return MetadataRequest(wanted, create, include_topic_authorized_operations=authorized)


@story("One topic with two partitions, in every version")
def metadata_versions(k: Narrator) -> None:
    topic = k.topic("metadata-versions", 2)
    for version in range(14):
        create = version < 4  # older versions cannot disable creation
        k.ask(about(Topic(topic.name, NO_ID), create=create), version, "by name")
    for version in (12, 13):
        k.ask(MetadataRequest([MetadataRequestTopic(topic.id, None)], False), version, "by id")


@story("Unknown topics and invalid names")
def metadata_of_nothing(k: Narrator) -> None:
    nowhere = Topic("metadata-nowhere", NO_ID)
    for version in (4, 8, 9, 12, 13):
        k.ask(about(nowhere), version, "an unknown name")
    for name in ("a b", "", ".", "..", "x" * 250, "ü"):
        k.ask(about(Topic(name, NO_ID)), 9, f"the name {name[:20]!r}")
        k.ask(about(Topic(name, NO_ID), create=True), 12, f"the name {name[:20]!r}, to be created")
    for version in (10, 11, 12, 13):
        k.ask(MetadataRequest([MetadataRequestTopic(UNKNOWN_ID, None)], False), version, "an unknown id")
    k.ask(MetadataRequest([MetadataRequestTopic(NO_ID, None)], False), 12, "neither name nor id")
    k.ask(MetadataRequest([MetadataRequestTopic(UNKNOWN_ID, "both")], False), 12, "a name and an id")
    k.ask(MetadataRequest([]), 1, "an empty list means none")
    k.ask(MetadataRequest([]), 12, "an empty list means none")


@story("One topic asked for twice, and together with unknown ones")
def metadata_of_several(k: Narrator) -> None:
    topic = k.topic("metadata-several")
    named = Topic(topic.name, NO_ID)
    k.ask(about(named, named), 9, "twice the same")
    k.ask(
        about(named, Topic("metadata-missing", NO_ID), Topic("not valid", NO_ID)),
        9,
        "one exists, one is unknown, one is invalid",
    )
    k.ask(about(named, authorized=True), 9, "with authorized operations")
    k.ask(
        MetadataRequest([], True, include_cluster_authorized_operations=True),
        9,
        "with authorized operations of the cluster",
    )


@story("A Metadata request creates a topic")
def metadata_creates(k: Narrator) -> None:
    name = "metadata-created"
    k.ask(about(Topic(name, NO_ID), create=True), 9, "the first time")
    k.wait_for_leaders(name, 4)
    k.ask(about(Topic(name, NO_ID), create=True), 9, "when it is there")


@story("The cluster itself")
def describe_cluster(k: Narrator) -> None:
    for version in (0, 1, 2):
        k.ask(DescribeClusterRequest(), version, "as it is")
    k.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), 0, "with authorized operations")
    k.ask(DescribeClusterRequest(include_fenced_brokers=True), 2, "with brokers that are fenced")
    k.ask(DescribeClusterRequest(endpoint_type=2), 1, "the controllers, of a broker")
    k.ask(DescribeClusterRequest(endpoint_type=3), 1, "an invalid endpoint type")


@story("Topics in pages")
def describe_topic_partitions(k: Narrator) -> None:
    first, second = k.topic("pages-a", 3), k.topic("pages-b", 2)
    both = [TopicRequest(first.name), TopicRequest(second.name)]
    k.ask(DescribeTopicPartitionsRequest(both), 0, "two topics")
    k.ask(DescribeTopicPartitionsRequest(both, 4), 0, "four partitions at most")
    cursor = DescribeTopicPartitionsRequestCursor(second.name, 1)
    k.ask(DescribeTopicPartitionsRequest(both, 4, cursor), 0, "from where the last page ended")
    k.ask(DescribeTopicPartitionsRequest([TopicRequest("pages-missing")]), 0, "an unknown topic")
    k.ask(DescribeTopicPartitionsRequest([TopicRequest("not valid")]), 0, "an invalid topic name")
    k.ask(DescribeTopicPartitionsRequest(both, 0), 0, "no partitions at most")
    k.ask(
        DescribeTopicPartitionsRequest(both, 4, DescribeTopicPartitionsRequestCursor(first.name, -1)),
        0,
        "a negative cursor",
    )
    k.ask(
        DescribeTopicPartitionsRequest(both, 4, DescribeTopicPartitionsRequestCursor("pages-z", 0)),
        0,
        "a cursor behind everything",
    )
