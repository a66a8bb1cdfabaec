"""Share groups (KIP-932): members, deliveries, acknowledgements, offsets, errors."""

from __future__ import annotations

import time
from typing import Final
from uuid import UUID

from ponor_kafka.messages import alter_share_group_offsets as altering
from ponor_kafka.messages import delete_share_group_offsets as deletion
from ponor_kafka.messages import describe_share_group_offsets as describing
from ponor_kafka.messages import share_acknowledge, share_fetch
from ponor_kafka.messages.delete_groups import DeleteGroupsRequest
from ponor_kafka.messages.list_groups import ListGroupsRequest
from ponor_kafka.messages.share_group_describe import ShareGroupDescribeRequest
from ponor_kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from ponor_runtime.identity import uuid_text

from tests.oracle.narrator import READY_S_MAX, Narrator, SetUpFailedError, Topic
from tests.oracle.story import story

ME: Final = uuid_text(UUID(int=7 << 64 | 1))
YOU: Final = uuid_text(UUID(int=7 << 64 | 2))
HEARTBEAT = ShareGroupHeartbeatRequest
LIMITS: Final = {"max_records": 500, "batch_size": 500}
NEW: Final = 0
LAST: Final = -1


def fetch(group: str, topic: Topic, epoch: int, member: str = ME) -> share_fetch.ShareFetchRequest:
    rows = [] if epoch else [share_fetch.FetchTopic(topic.id, [share_fetch.FetchPartition(0)])]
    return share_fetch.ShareFetchRequest(
        group, member, epoch, 100, 0, max_records=500, batch_size=500, topics=rows
    )


def acknowledge(
    group: str, topic: Topic, epoch: int, *rows: tuple[int, int, list[int]], member: str = ME
) -> share_acknowledge.ShareAcknowledgeRequest:
    batches = [share_acknowledge.AcknowledgementBatch(*row) for row in rows]
    partitions = [share_acknowledge.AcknowledgePartition(0, batches)]
    topics = [share_acknowledge.AcknowledgeTopic(topic.id, partitions)] if rows else []
    return share_acknowledge.ShareAcknowledgeRequest(group, member, epoch, topics=topics)


def join(k: Narrator, group: str, topic: Topic) -> None:
    """Join with heartbeats that are not recorded, until the member has an assignment."""
    request = HEARTBEAT(group, ME, NEW, subscribed_topic_names=[topic.name])
    deadline = time.monotonic() + READY_S_MAX
    while not ((answer := k.quietly(request, 1).assignment) and answer.topic_partitions):
        if time.monotonic() > deadline:
            raise SetUpFailedError(f"{group} gets no assignment")
        time.sleep(0.1)


@story("A member of a share group joins, gets its partitions, is described and leaves")
def share_group_alone(k: Narrator) -> None:
    topic = k.topic("share-alone", 2)
    group = "share-alone-group"
    k.ask(HEARTBEAT(group, "", NEW, subscribed_topic_names=[topic.name]), 1, "no member id")
    k.ask(HEARTBEAT("", ME, NEW, subscribed_topic_names=[topic.name]), 1, "no group id")
    k.ask(HEARTBEAT(group, ME, NEW), 1, "joins without a subscription")
    k.ask(HEARTBEAT(group, ME, NEW, rack_id="", subscribed_topic_names=[topic.name]), 1, "an empty rack")
    k.ask(HEARTBEAT(group, ME, -3, subscribed_topic_names=[topic.name]), 1, "an epoch below -1")
    k.ask(HEARTBEAT("share-missing", ME, 1), 1, "a group that does not exist")
    join(k, group, topic)
    k.ask(HEARTBEAT(group, YOU, 1), 1, "another member")
    k.ask(HEARTBEAT(group, ME, 99), 1, "an epoch that is too new")
    k.ask(ListGroupsRequest([], ["share"]), 5, "is listed")
    k.ask(ShareGroupDescribeRequest(["share-missing"]), 1, "another group is described")
    k.ask(DeleteGroupsRequest([group]), 2, "is not deleted")
    k.ask(HEARTBEAT(group, ME, LAST), 1, "leaves")
    k.ask(HEARTBEAT(group, ME, 1), 1, "continues after it left")


@story("Records of a share group are acquired, accepted, released and rejected")
def share_deliveries(k: Narrator) -> None:
    topic = k.topic("share-read", 1)
    group = "share-read-group"
    join(k, group, topic)
    for version in (1, 2):
        k.ask(fetch(group, topic, 5), version, "a session that does not exist")
        k.ask(acknowledge(group, topic, 5, (0, 0, [1])), version, "acknowledges without a session")
        k.ask(acknowledge(group, topic, 0), version, "acknowledges in epoch 0")


@story("Offsets of share groups are described, reset and deleted")
def share_offsets(k: Narrator) -> None:
    topic = k.topic("share-offsets", 1)
    group = "share-offsets-group"
    rows = [
        altering.AlterShareGroupOffsetsRequestTopic(
            topic.name, [altering.AlterShareGroupOffsetsRequestPartition(0, 0)]
        )
    ]
    deleted = [deletion.DeleteShareGroupOffsetsRequestTopic(topic.name)]
    wanted = describing.DescribeShareGroupOffsetsRequestGroup(
        "share-none", [describing.DescribeShareGroupOffsetsRequestTopic(topic.name, [0])]
    )
    for version in (0, 1):
        k.ask(describing.DescribeShareGroupOffsetsRequest([wanted]), version, "a missing group")
    k.ask(deletion.DeleteShareGroupOffsetsRequest("share-none", deleted), 0, "a missing group")
    join(k, group, topic)
    k.ask(altering.AlterShareGroupOffsetsRequest(group, rows), 0, "not reset with a member")
    k.ask(deletion.DeleteShareGroupOffsetsRequest(group, deleted), 0, "not deleted with a member")
