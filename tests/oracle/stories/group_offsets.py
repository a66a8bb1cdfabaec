"""Committed offsets: stored, read, refused, deleted."""

from __future__ import annotations

from ponor_kafka.messages.offset_commit import OffsetCommitRequest
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

from tests.oracle.asking import assignment, commit, committed, join, sync
from tests.oracle.narrator import Narrator, Topic
from tests.oracle.story import story


@story("Commits without members, in every version")
def offset_commit_versions(k: Narrator) -> None:
    topic = k.topic("commit-versions", 2)
    for version in range(2, 11):
        k.ask(
            commit("commit-versions", topic, version, metadata=f"v{version}", leader_epoch=0),
            version,
            f"offset {version}",
        )
        fetched = min(version, 10)
        k.ask(committed("commit-versions", topic, fetched, 0, 1), fetched, "one is committed, one is not")


@story("Committed offsets in every version")
def offset_fetch_versions(k: Narrator) -> None:
    topic = k.topic("fetch-committed", 2)
    k.ask(commit("fetch-committed", topic, 5, metadata="some words"), 8, "offset 5")
    for version in range(1, 11):
        k.ask(committed("fetch-committed", topic, version, 0, 1, 7), version, "three partitions")
    for version in (2, 7, 8, 9, 10):
        k.ask(committed("fetch-committed", None, version), version, "all of the group")
        k.ask(committed("fetch-committed-never", None, version), version, "all of an unknown group")
    k.ask(committed("fetch-committed-never", topic, 8, 0), 8, "of an unknown group")
    k.ask(committed("", topic, 8, 0), 8, "no group id")
    k.ask(
        committed("fetch-committed", Topic("fetch-committed-missing", bytes(range(16))), 8, 0),
        8,
        "an unknown topic",
    )
    k.ask(
        committed("fetch-committed", Topic("fetch-committed-missing", bytes(range(16))), 10, 0),
        10,
        "an unknown id",
    )
    k.ask(
        OffsetFetchRequest(group_id="fetch-committed", require_stable=True),
        7,
        "only what is stable, of nothing",
    )
    rows = [OffsetFetchRequestTopics(topic.name, topic.id, [0])]
    groups = [
        OffsetFetchRequestGroup("fetch-committed", topics=rows),
        OffsetFetchRequestGroup("fetch-committed-other", topics=rows),
    ]
    k.ask(OffsetFetchRequest(groups=groups, require_stable=True), 8, "two groups")
    stranger = OffsetFetchRequestGroup("fetch-committed", "a-member", 5, rows)
    k.ask(OffsetFetchRequest(groups=[stranger]), 9, "by an unknown member of the new protocol")


@story("Contents of a commit")
def offset_commit_contents(k: Narrator) -> None:
    topic = k.topic("commit-contents")
    for metadata in (None, "", "x" * 4096):
        size = "no" if metadata is None else str(len(metadata))
        k.ask(commit("commit-contents", topic, 1, metadata=metadata), 8, f"{size} bytes of metadata")
        k.ask(committed("commit-contents", topic, 8, 0), 8, "as committed")
    k.ask(commit("commit-contents", topic, 2, metadata="x" * 4097), 8, "4097 bytes of metadata")
    k.ask(commit("commit-contents", topic, 0), 8, "offset 0")
    k.ask(commit("commit-contents", topic, -1), 8, "offset -1")
    k.ask(commit("commit-contents", topic, -5), 8, "offset -5")
    k.ask(commit("commit-contents", topic, 1 << 60), 8, "an offset far behind the end")
    k.ask(commit("commit-contents", topic, 3, leader_epoch=77), 8, "a leader epoch of the future")
    k.ask(committed("commit-contents", topic, 8, 0), 8, "the last that was taken")


@story("Commits that are refused")
def offset_commit_refused(k: Narrator) -> None:
    topic = k.topic("commit-refused")
    k.ask(commit("commit-refused", topic, 1, partition=1), 8, "an unknown partition")
    k.ask(commit("commit-refused", Topic("commit-missing", bytes(range(16))), 1), 8, "an unknown topic")
    k.ask(commit("commit-refused", Topic("commit-missing", bytes(range(16))), 1), 10, "an unknown id")
    k.ask(commit("commit-refused", Topic(topic.name, bytes(16)), 1), 10, "no id")
    k.ask(commit("", topic, 1), 8, "no group id")
    k.ask(
        commit("commit-refused-none", topic, 1, generation=3, member="stranger"),
        8,
        "an unknown group, with a generation",
    )
    k.ask(
        commit("commit-refused-none", topic, 1, generation=3, member="stranger"), 9, "the same in version 9"
    )
    k.ask(OffsetCommitRequest("commit-refused", topics=[]), 8, "nothing")


@story("Commits of members, unknown members and old generations")
def offset_commit_members(k: Narrator) -> None:
    topic, group = k.topic("commit-members"), "commit-members"
    me = k.ask(join(group, topics=(topic.name,)), 5, "asks for an id").member_id
    generation = k.ask(join(group, me, topics=(topic.name,)), 5, "joins").generation_id
    k.ask(commit(group, topic, 1, generation=generation, member=me), 8, "before it synced")
    k.ask(sync(group, generation, me, {me: assignment(topic.name, 0)}), 3, "syncs")
    k.ask(commit(group, topic, 2, generation=generation, member=me), 8, "as it should be")
    k.ask(commit(group, topic, 3, generation=generation + 1, member=me), 8, "a future generation")
    k.ask(commit(group, topic, 3, generation=generation - 1, member=me), 8, "an old generation")
    k.ask(commit(group, topic, 3, generation=generation, member="stranger"), 8, "an unknown member")
    k.ask(commit(group, topic, 3), 8, "from outside, while the group lives")
    k.ask(commit(group, topic, 3, generation=-1, member=me), 8, "a member without a generation")
    k.ask(
        commit(group, topic, 3, generation=generation, member=me, instance="one"),
        8,
        "an unknown instance",
    )
    k.ask(committed(group, topic, 8, 0), 8, "the last that was taken")


@story("Committed offsets are deleted")
def offset_delete(k: Narrator) -> None:
    topic, other, group = k.topic("offset-delete", 2), k.topic("offset-delete-other"), "offset-delete"
    k.ask(commit(group, topic, 5), 8, "offset 5")
    k.ask(commit(group, other, 6), 8, "offset 6 of another topic")

    def forget(*partitions: int, name: str = topic.name, of: str = group) -> OffsetDeleteRequest:
        rows = [OffsetDeleteRequestPartition(partition) for partition in partitions]
        return OffsetDeleteRequest(of, [OffsetDeleteRequestTopic(name, rows)])

    k.ask(forget(0), 0, "it is deleted")
    k.ask(committed(group, topic, 8, 0), 8, "it is gone")
    k.ask(forget(0, 1), 0, "what is not there")
    k.ask(forget(9), 0, "an unknown partition")
    k.ask(forget(0, name="offset-delete-missing"), 0, "an unknown topic")
    k.ask(forget(0, of="offset-delete-none"), 0, "an unknown group")
    k.ask(forget(0, of=""), 0, "no group id")
    me = k.ask(join(group, topics=(topic.name,)), 5, "a consumer asks for an id").member_id
    generation = k.ask(
        join(group, me, topics=(topic.name,)), 5, "joins, subscribed to one of the topics"
    ).generation_id
    k.ask(sync(group, generation, me, {me: assignment(topic.name, 0)}), 3, "syncs")
    k.ask(forget(0), 0, "of a topic that is subscribed")
    k.ask(forget(0, name=other.name), 0, "of a topic that is not")
