"""Consumer groups with server-side assignment (KIP-848): heartbeats, epochs, static members, errors."""

from __future__ import annotations

import time
from typing import Any, Final

from ponor_kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ponor_kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from ponor_kafka.messages.delete_groups import DeleteGroupsRequest
from ponor_kafka.messages.describe_groups import DescribeGroupsRequest
from ponor_kafka.messages.heartbeat import HeartbeatRequest
from ponor_kafka.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ponor_kafka.messages.list_groups import ListGroupsRequest
from ponor_kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ponor_kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ponor_kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

from tests.oracle.asking import join
from tests.oracle.narrator import Narrator, Only
from tests.oracle.story import story

NEWEST: Final = 1
INTERVAL_S: Final = 1.5
"""Longer than the interval between two computations of a target."""
HEARTBEAT = ConsumerGroupHeartbeatRequest


def joining(group: str, member: str, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    given = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": list(topics), "topic_partitions": []}
    return HEARTBEAT(group, member, 0, **{**given, **fields})


def using(topic_id: bytes, *partitions: int) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
    return [ConsumerGroupHeartbeatRequestTopicPartitions(topic_id, list(partitions))] if partitions else []


def committing(group: str, member: str, epoch: int, topic: str, *partitions: int) -> OffsetCommitRequest:
    rows = [OffsetCommitRequestPartition(partition, 5) for partition in partitions]
    return OffsetCommitRequest(
        group, epoch, member, topics=[OffsetCommitRequestTopic(topic, partitions=rows)]
    )


@story("A member of a consumer group joins, beats, is described and leaves, in every version")
def consumer_group_alone(k: Narrator) -> None:
    topic = k.topic("cg-alone", 3)
    for version in range(NEWEST + 1):
        group = f"cg-alone-{version}"
        k.ask(joining(group, "me", topic.name), version, "joins")
        k.ask(HEARTBEAT(group, "me", 2), version, "changes nothing")
        k.ask(HEARTBEAT(group, "me", 2, topic_partitions=using(topic.id, 0, 1, 2)), version, "reports")
        k.ask(ConsumerGroupDescribeRequest([group]), version, "is described")
        k.ask(HEARTBEAT(group, "me", 3), version, "an epoch that is too new")
        k.ask(HEARTBEAT(group, "me", 0), version, "joins without fields")
        k.ask(joining(group, "me", topic.name), version, "joins again")
        k.ask(HEARTBEAT(group, "you", 2), version, "another member")
        k.ask(HEARTBEAT(group, "you", -1), version, "another member leaves")
        k.ask(HEARTBEAT(group, "me", -1), version, "leaves")
        k.ask(HEARTBEAT(group, "me", 2), version, "continues after it left")
        k.ask(ConsumerGroupDescribeRequest([group]), version, "is empty")
    k.ask(joining("cg-without-id", "", topic.name), 0, "the coordinator draws the id")


@story("Two members share a topic; the first revokes before the second gets its part")
def consumer_group_of_two(k: Narrator) -> None:
    topic, group = k.topic("cg-two", 4), "cg-two"
    k.ask(joining(group, "m1", topic.name), 1, "the first joins")
    k.ask(joining(group, "m2", topic.name), 1, "the second joins within the interval")
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "the target is computed later")
    time.sleep(INTERVAL_S)
    k.ask(HEARTBEAT(group, "m2", 2), 1, "the second sees the target")
    k.ask(HEARTBEAT(group, "m2", 3), 1, "the second waits")
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "the first must revoke")
    k.ask(HEARTBEAT(group, "m1", 2), 1, "the first gets a smaller assignment")
    k.ask(HEARTBEAT(group, "m1", 2), 1, "it has not revoked")
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "still not")
    k.ask(HEARTBEAT(group, "m1", 2, topic_partitions=using(topic.id, 0, 1)), 1, "it has revoked")
    k.ask(HEARTBEAT(group, "m2", 3), 1, "the second gets its part")
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "both have their target")
    k.ask(HEARTBEAT(group, "m1", 2, topic_partitions=using(topic.id, 0, 1)), 1, "the answer was lost")
    k.ask(HEARTBEAT(group, "m1", 2, topic_partitions=using(topic.id, 2)), 1, "a partition of another")
    k.ask(HEARTBEAT(group, "m1", 2), 1, "the previous epoch without a report")
    k.ask(committing(group, "m1", 3, topic.name, 0), 9, "commits with its epoch")
    k.ask(committing(group, "m1", 2, topic.name, 0), 9, "with the epoch since which it has the partition")
    k.ask(committing(group, "m2", 2, topic.name, 2), 9, "before it had the partition")
    k.ask(committing(group, "m1", 2, topic.name, 0, 2), 9, "one of them is not its own")
    k.ask(committing(group, "m1", 3, topic.name, 2), 9, "a partition of another with the current epoch")
    k.ask(committing(group, "m1", 4, topic.name, 0), 9, "an epoch that is too new")
    k.ask(committing(group, "m3", 3, topic.name, 0), 9, "a stranger")
    k.ask(committing(group, "", -1, topic.name, 0), 9, "without a member")
    k.ask(committing(group, "m1", 3, topic.name, 0), 8, "with an old version")
    asked = [OffsetFetchRequestTopics(topic.name, partition_indexes=[0, 2])]
    for member, epoch in (("m1", 3), ("m1", 2), ("m1", 4), ("m3", 3), (None, -1), ("", -1)):
        fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, member, epoch, topics=asked)])
        k.ask(fetch, 9, f"{member} reads with epoch {epoch}")
    rows = [OffsetDeleteRequestTopic(topic.name, [OffsetDeleteRequestPartition(0)])]
    k.ask(OffsetDeleteRequest(group, rows), 0, "an offset of a subscribed topic is deleted")
    k.ask(DeleteGroupsRequest([group]), 2, "a group with members is deleted")
    k.ask(HEARTBEAT(group, "m1", -1), 1, "the first leaves")
    k.ask(HEARTBEAT(group, "m2", -1), 1, "the second leaves")
    k.ask(DeleteGroupsRequest([group]), 2, "the empty group is deleted")


@story("Static members leave for a short time and return")
def consumer_group_static(k: Narrator) -> None:
    topic, group = k.topic("cg-static", 2), "cg-static"
    k.ask(joining(group, "s1", topic.name, instance_id="s"), 1, "joins")
    k.ask(joining(group, "s2", topic.name, instance_id="s"), 1, "a second one while the first is alive")
    k.ask(HEARTBEAT(group, "s2", 2, "s"), 1, "a heartbeat of the second")
    k.ask(HEARTBEAT(group, "s1", 2, "other"), 1, "another instance id")
    k.ask(HEARTBEAT(group, "s1", -2, "s"), 1, "leaves for a short time")
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "is away")
    k.ask(HEARTBEAT(group, "s1", 2, "s"), 1, "continues although it left")
    k.ask(joining(group, "s2", topic.name, instance_id="s"), 1, "its successor joins")
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "has its partitions")
    k.ask(HEARTBEAT(group, "s1", 2, "s"), 1, "the first one returns")
    k.ask(HEARTBEAT(group, "s1", -1, "s"), 1, "the first one leaves")
    k.ask(HEARTBEAT(group, "s2", -1, "s"), 1, "the successor leaves")
    k.ask(HEARTBEAT(group, "s2", -1, "s"), 1, "twice")


@story("Heartbeats of invalid form")
def consumer_group_malformed(k: Narrator) -> None:
    topic, group = k.topic("cg-form", 1), "cg-form"
    name = topic.name
    k.ask(joining("", "m", name), 1, "no group")
    k.ask(joining(group, "", name), 1, "no member id")
    k.ask(joining(group, " ", name), 1, "a blank member id")
    k.ask(joining(group, "m", name, instance_id=""), 1, "an empty instance id")
    k.ask(joining(group, "m", name, rack_id=""), 1, "an empty rack")
    k.ask(joining(group, "m", name, rebalance_timeout_ms=-1), 1, "no timeout")
    k.ask(joining(group, "m", name, topic_partitions=None), 1, "no partitions")
    k.ask(joining(group, "m", name, topic_partitions=using(topic.id, 0)), 1, "owns partitions")
    k.ask(joining(group, "m", subscribed_topic_names=None), 1, "no subscription")
    k.ask(joining(group, "m", name, server_assignor="mine"), 1, "an unknown assignor")
    k.ask(joining(group, "m", subscribed_topic_regex="a("), 1, "an invalid expression")
    k.ask(HEARTBEAT(group, "m", -3), 1, "an unknown epoch")
    k.ask(HEARTBEAT(group, "m", -2), 1, "a dynamic member leaves for a short time")
    k.ask(HEARTBEAT(group, "m", 2), 1, "no such group")
    k.ask(HEARTBEAT(group, "m", -1), 1, "leaves no such group")
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "nothing was created")
    k.ask(joining(group, "m"), 1, "no topics")
    k.ask(joining(group, "n", "missing"), 1, "a missing topic")


@story("The two types of group")
def consumer_group_types(k: Narrator) -> None:
    topic, group = k.topic("cg-types", 1), "cg-types"
    k.ask(joining(group, "m", topic.name), 1, "joins")
    k.ask(join(group), 5, "a classic member of another protocol", on="classic")
    k.ask(HeartbeatRequest(group, 1, "m"), 4, "a classic heartbeat")
    k.ask(LeaveGroupRequest(group, "", [MemberIdentity("m")]), 4, "a classic member leaves")
    k.ask(DescribeGroupsRequest([group]), 5, "described as a classic group")
    k.ask(DescribeGroupsRequest([group]), 6, "described as a classic group, newer")
    k.ask(HEARTBEAT(group, "m", -1), 1, "leaves")
    k.ask(ListGroupsRequest(types_filter=["consumer"]), 5, "is empty", only=Only("groups", "group_id", group))
    k.ask(join(group), 5, "a classic member asks for an id", on="classic")
    time.sleep(INTERVAL_S)  # Kafka answers before its log has the tombstones
    k.ask(ConsumerGroupDescribeRequest([group, "cg-missing"]), 1, "a classic group, and none")
