"""Groups with members that change between the classic and the consumer protocol (KIP-848)."""

from __future__ import annotations

import time
from typing import Any

from ponor_kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ponor_kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ponor_kafka.messages.describe_groups import DescribeGroupsRequest
from ponor_kafka.messages.heartbeat import HeartbeatRequest
from ponor_kafka.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ponor_kafka.messages.list_groups import ListGroupsRequest

from tests.oracle.asking import assignment, commit, join, sync
from tests.oracle.narrator import Narrator, Only, Topic
from tests.oracle.stories.consumer_groups import INTERVAL_S, joining, using
from tests.oracle.stories.groups import member
from tests.oracle.story import story

BEAT = ConsumerGroupHeartbeatRequest


def classic_alone(k: Narrator, group: str, topic: Topic, **fields: Any) -> tuple[str, int]:
    """Create a synced classic group with one member that has all partitions."""
    me = "" if "instance" in fields else member(k, group, "first", topics=[topic.name])
    joined = k.ask(join(group, me, topics=[topic.name], **fields), 5, "a classic member joins")
    me, generation = joined.member_id, joined.generation_id
    share = {me: assignment(topic.name, 0, 1, 2, 3)}
    k.ask(sync(group, generation, me, share, **fields), 3, "and has all partitions")
    return me, generation


@story("A member with heartbeats upgrades a classic group; the last one that leaves downgrades it")
def group_migration(k: Narrator) -> None:
    topic, group = k.topic("migration", 4), "migrated"
    me, generation = classic_alone(k, group, topic)
    k.ask(commit(group, topic, 3, generation=generation, member=me), 8, "the classic member commits")
    k.ask(joining(group, "m", topic.name), 1, "a member with heartbeats joins")
    k.ask(DescribeGroupsRequest([group]), 6, "it is no classic group")
    own = Only("groups", "group_id", group)
    k.ask(ListGroupsRequest(types_filter=["consumer"]), 5, "it is listed", only=own)
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "it has members of both protocols")
    k.ask(commit(group, topic, 4, generation=generation, member=me), 8, "commits with its generation")
    k.ask(commit(group, topic, 4, generation=generation + 5, member=me), 8, "with a generation too new")
    k.ask(HeartbeatRequest(group, generation + 5, me), 3, "a heartbeat with a generation too new")
    k.ask(HeartbeatRequest(group, generation, me), 3, "must join again")
    k.ask(sync(group, generation, me), 3, "syncs before it joins")
    joined = k.ask(join(group, me, topics=[topic.name]), 5, "joins again, with no partitions")
    generation = joined.generation_id
    k.ask(sync(group, generation - 1, me), 3, "syncs with its old generation")
    k.ask(sync(group, generation, me, protocol="other"), 5, "syncs with another protocol")
    k.ask(sync(group, generation, me, protocol_type="other"), 5, "syncs with another protocol type")
    k.ask(sync(group, generation, me), 3, "gets its part")
    k.ask(sync(group, generation, me), 5, "gets it again")
    k.ask(HeartbeatRequest(group, generation, me), 3, "no rebalance")
    k.ask(commit(group, topic, 5, generation=generation, member=me), 8, "commits with its new generation")
    k.ask(commit(group, topic, 5, generation=generation - 1, member=me), 8, "commits with the old one")
    k.ask(BEAT(group, "m", generation), 1, "the member with heartbeats gets its part")
    k.ask(HeartbeatRequest(group, generation, "m"), 3, "a classic heartbeat of it")
    k.ask(sync(group, generation, "m"), 3, "a classic sync of it")
    k.ask(join(group, "", topics=[topic.name], protocols=["other"]), 5, "no common protocol", on="second")
    k.ask(join(group, "", protocol_type="connect"), 5, "another protocol type", on="second")
    k.ask(join(group, "", session_ms=1), 5, "a session that is too short", on="second")
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "both have their target")
    k.ask(BEAT(group, "m", -1), 1, "the member with heartbeats leaves")
    k.ask(DescribeGroupsRequest([group]), 5, "it is a classic group")
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "it is no consumer group")
    k.ask(HeartbeatRequest(group, generation, me), 3, "a rebalance")
    k.ask(commit(group, topic, 6, generation=generation, member=me), 8, "commits before it joins")
    joined = k.ask(join(group, me, topics=[topic.name]), 5, "leads")
    share = {me: assignment(topic.name, 0, 1, 2, 3)}
    k.ask(sync(group, joined.generation_id, me, share), 3, "has all partitions again")
    k.ask(LeaveGroupRequest(group, "", [MemberIdentity(me)]), 4, "leaves")


@story("Administrators remove members of a consumer group")
def consumer_group_removal(k: Narrator) -> None:
    topic, group = k.topic("removal", 4), "removal"
    k.ask(joining(group, "m1", topic.name), 1, "joins")
    k.ask(joining(group, "s1", topic.name, instance_id="s"), 1, "a static member joins")
    leaving = [MemberIdentity("m1", "s"), MemberIdentity("x", "s"), MemberIdentity("", "other")]
    k.ask(LeaveGroupRequest(group, "", [*leaving, MemberIdentity("stranger")]), 5, "no member is removed")
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "both are there")
    k.ask(
        LeaveGroupRequest(group, "", [MemberIdentity("", "s"), MemberIdentity("m1")]), 5, "both are removed"
    )
    k.ask(BEAT(group, "m1", 2), 1, "continues")
    k.ask(BEAT(group, "s1", 2, "s"), 1, "the static member continues")
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "is empty")
    k.ask(joining(group, "m1", topic.name), 1, "joins again")
    k.ask(LeaveGroupRequest(group, "m1"), 1, "is removed by an old version")


@story("Static members change the protocol")
def group_migration_static(k: Narrator) -> None:
    topic, group = k.topic("migration-static", 4), "migration-static"
    me, generation = classic_alone(k, group, topic, instance="s")
    k.ask(joining(group, "m", topic.name, instance_id="s"), 1, "its successor sends heartbeats")
    k.ask(ConsumerGroupDescribeRequest([group]), 1, "it has the partitions")
    k.ask(HeartbeatRequest(group, generation, me, "s"), 3, "the classic member is fenced")
    k.ask(joining(group, "n", topic.name, instance_id="s"), 1, "another one while it is alive")
    time.sleep(INTERVAL_S)
    k.ask(joining(group, "d", topic.name), 1, "a dynamic member joins")
    k.ask(join(group, instance="s", topics=[topic.name]), 5, "a classic successor", on="first")
    k.ask(BEAT(group, "m", generation), 1, "the member with heartbeats is fenced")
    k.ask(BEAT(group, "d", -1), 1, "the dynamic member leaves")
    k.ask(DescribeGroupsRequest([group]), 5, "it is a classic group")


@story("A cooperative member reports what it owns")
def group_migration_cooperative(k: Narrator) -> None:
    topic, group = k.topic("migration-coop", 4), "migration-coop"
    k.ask(joining(group, "m", topic.name), 1, "joins")
    me = member(k, group, "first", topics=[topic.name])
    joined = k.ask(join(group, me, topics=[topic.name]), 5, "a classic member joins")
    k.ask(sync(group, joined.generation_id, me), 3, "syncs within the interval")
    time.sleep(INTERVAL_S)
    k.ask(BEAT(group, "m", 2), 1, "must revoke")
    k.ask(HeartbeatRequest(group, joined.generation_id, me), 3, "must join")
    joined = k.ask(join(group, me, topics=[topic.name]), 5, "joins again")
    k.ask(sync(group, joined.generation_id, me), 3, "nothing is free")
    k.ask(HeartbeatRequest(group, joined.generation_id, me), 3, "still not")
    k.ask(BEAT(group, "m", 2, topic_partitions=using(topic.id, 0, 1)), 1, "has revoked")
    k.ask(HeartbeatRequest(group, joined.generation_id, me), 3, "partitions are free")
    k.ask(join(group, me, topics=[topic.name]), 5, "joins for them")
    k.ask(sync(group, joined.generation_id, me), 3, "gets them")
    k.ask(LeaveGroupRequest(group, "", [MemberIdentity(me)]), 4, "leaves")
    k.ask(BEAT(group, "m", -1), 1, "leaves, too")
