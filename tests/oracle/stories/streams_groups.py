"""Streams groups (KIP-1071): heartbeats with a topology, internal topics, tasks, errors."""

from __future__ import annotations

import time
from typing import Any, Final

from ponor_kafka.messages.delete_groups import DeleteGroupsRequest
from ponor_kafka.messages.describe_groups import DescribeGroupsRequest
from ponor_kafka.messages.list_groups import ListGroupsRequest
from ponor_kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ponor_kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ponor_kafka.messages.streams_group_describe import StreamsGroupDescribeRequest
from ponor_kafka.messages.streams_group_heartbeat import (
    CopartitionGroup,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestEndpoint,
    StreamsGroupHeartbeatRequestTaskIds,
    Subtopology,
    TopicInfo,
    Topology,
)

from tests.oracle.narrator import Narrator
from tests.oracle.story import story

DELAY_S: Final = 6.0
"""Longer than the initial delay of an assignment and the interval after it."""
INTERVAL_S: Final = 1.5
"""Longer than the interval between two assignments, and the creation of a topic."""
HEARTBEAT = StreamsGroupHeartbeatRequest
TASKS = StreamsGroupHeartbeatRequestTaskIds


def joining(group: str, member: str, topology: Topology | None, **fields: Any) -> Any:
    given: dict[str, Any] = {
        "rebalance_timeout_ms": 60_000,
        "topology": topology,
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "process_id": member,
        "client_tags": [],
    }
    return HEARTBEAT(group, member, **{"member_epoch": 0, "endpoint_information_epoch": 0, **given, **fields})


def owning(group: str, member: str, epoch: int, *rows: tuple[str, list[int]], endpoint_epoch: int = 0) -> Any:
    tasks = [TASKS(subtopology_id, partitions) for subtopology_id, partitions in rows]
    return HEARTBEAT(
        group, member, epoch, endpoint_epoch, active_tasks=tasks, standby_tasks=[], warmup_tasks=[]
    )


def plain(topic: str, epoch: int = 0) -> Topology:
    return Topology(epoch, [Subtopology("0", [topic])])


def word_count(group: str, topic: str) -> Topology:
    changelog = TopicInfo(f"{group}-counts", topic_configs=[KeyValue("cleanup.policy", "compact")])
    return Topology(
        0,
        [
            Subtopology("0", [topic], repartition_sink_topics=[f"{group}-words"]),
            Subtopology(
                "1",
                state_changelog_topics=[changelog],
                repartition_source_topics=[TopicInfo(f"{group}-words")],
            ),
        ],
    )


@story("A member of a streams group joins, gets its tasks, is described and leaves")
def streams_group_alone(k: Narrator) -> None:
    topic = k.topic("sg-alone", 2)
    group = "sg-alone-group"
    endpoint = StreamsGroupHeartbeatRequestEndpoint("host", 8_080)
    k.ask(joining(group, "me", plain(topic.name), user_endpoint=endpoint), 0, "joins")
    k.ask(HEARTBEAT(group, "me", 1, 0), 0, "waits for other members")
    time.sleep(DELAY_S)
    k.ask(HEARTBEAT(group, "me", 1, 0), 0, "gets its tasks")
    k.ask(owning(group, "me", 2, ("0", [0, 1]), endpoint_epoch=2), 0, "reports")
    k.ask(StreamsGroupDescribeRequest([group, "sg-missing"]), 0, "is described")
    k.ask(ListGroupsRequest([], ["streams"]), 5, "is listed")
    k.ask(DescribeGroupsRequest([group]), 6, "is described as a classic group")
    k.ask(HEARTBEAT(group, "me", 3, 0), 0, "an epoch that is too new")
    k.ask(HEARTBEAT(group, "you", 2, 0), 0, "another member")
    k.ask(owning(group, "me", 2, ("9", [0])), 0, "tasks of a subtopology that does not exist")
    k.ask(owning(group, "me", 2, ("0", [2])), 0, "a task that does not exist")
    k.ask(DeleteGroupsRequest([group]), 2, "is not deleted")
    k.ask(HEARTBEAT(group, "me", -1, 0), 0, "leaves")
    k.ask(HEARTBEAT(group, "me", 2, 0), 0, "continues after it left")
    k.ask(StreamsGroupDescribeRequest([group]), 0, "is empty")
    k.ask(DeleteGroupsRequest([group]), 2, "is deleted")
    k.ask(HEARTBEAT(group, "me", 2, 0), 0, "continues after the deletion")


@story("Requests of streams groups that Kafka refuses")
def streams_group_refusals(k: Narrator) -> None:
    topic = k.topic("sg-refused", 1)
    group, topology = "sg-refused-group", plain("sg-refused")
    assert topic.name == "sg-refused"
    for note, fields in (
        ("no topology", {"topology": None}),
        ("no tasks", {"active_tasks": None}),
        ("no rebalance timeout", {"rebalance_timeout_ms": -1}),
        ("a static member", {"instance_id": "i"}),
        ("an empty rack", {"rack_id": ""}),
        ("warm-up tasks", {"warmup_tasks": [TASKS("0", [0])]}),
        ("an epoch below -2", {"member_epoch": -3}),
        ("a short leave", {"member_epoch": -2, "topology": None}),
        ("a topology with a later heartbeat", {"member_epoch": 1}),
        (
            "a regular expression",
            {"topology": Topology(0, [Subtopology("0", source_topic_regex=["sg-.*"])])},
        ),
        (
            "a changelog with partitions",
            {
                "topology": Topology(
                    0, [Subtopology("0", ["sg-refused"], state_changelog_topics=[TopicInfo("c", 3)])]
                )
            },
        ),
    ):
        given: dict[str, Any] = {"topology": topology, **fields}
        k.ask(joining(group, "me", **given), 0, note)
    k.ask(HEARTBEAT(group, "me", 1, 0), 0, "a group that does not exist")
    k.ask(joining("", "me", topology), 0, "no group")
    k.ask(joining(group, "", topology), 0, "no member")


@story("Missing topics, a stale and a changed topology, and a shutdown appear in the status")
def streams_group_statuses(k: Narrator) -> None:
    group = "sg-status-group"
    k.ask(joining(group, "me", plain("sg-status", 1)), 0, "the source topic is missing")
    k.topic("sg-status", 1)
    time.sleep(DELAY_S)
    k.ask(HEARTBEAT(group, "me", 1, 0), 0, "the source topic exists")
    time.sleep(INTERVAL_S)
    k.ask(joining(group, "old", plain("sg-status", 0)), 0, "an older topology")
    k.ask(joining(group, "new", plain("sg-status", 2)), 0, "a newer topology")
    k.ask(HEARTBEAT(group, "old", -1, 0, shutdown_application=True), 0, "leaves with a shutdown")
    first, second = k.topic("sg-two", 2), k.topic("sg-three", 3)
    both = Subtopology("0", [first.name, second.name], copartition_groups=[CopartitionGroup([0, 1])])
    k.ask(joining("sg-copartitioned", "me", Topology(0, [both])), 0, "unequal numbers of partitions")


@story("Internal topics are created, and offsets are committed with the member epoch")
def streams_group_internal_topics(k: Narrator) -> None:
    topic = k.topic("sg-words", 2)
    group = "sg-words-group"
    k.ask(joining(group, "me", word_count(group, topic.name)), 0, "internal topics are missing")
    time.sleep(DELAY_S)
    answer = k.ask(HEARTBEAT(group, "me", 1, 0), 0, "internal topics exist")
    epoch = answer.member_epoch
    k.ask(StreamsGroupDescribeRequest([group]), 0, "is described")

    def commit(epoch: int, note: str, topic: str = topic.name) -> None:
        rows = [OffsetCommitRequestTopic(topic, partitions=[OffsetCommitRequestPartition(0, 5)])]
        k.ask(OffsetCommitRequest(group, epoch, "me", topics=rows), 9, note)

    commit(epoch, "commits")
    commit(epoch + 1, "commits with a newer epoch")
    commit(epoch - 1, "commits with an older epoch")
    for at, note in ((epoch, "fetches"), (epoch + 1, "fetches with a newer epoch")):
        k.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, "me", at, None)]), 9, note)
