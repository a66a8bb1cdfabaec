"""Groups: coordinators, listings, descriptions, deletions."""

from __future__ import annotations

from ponor_kafka.messages.delete_groups import DeleteGroupsRequest
from ponor_kafka.messages.describe_groups import DescribeGroupsRequest
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest
from ponor_kafka.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ponor_kafka.messages.list_groups import ListGroupsRequest

from tests.oracle.asking import assignment, commit, committed, join, sync
from tests.oracle.narrator import Narrator, Only
from tests.oracle.story import story

GROUP, TRANSACTION, SHARE = 0, 1, 2


@story("Who coordinates a group?")
def find_coordinator(k: Narrator) -> None:
    k.topic("find-coordinator")
    k.ask(commit("find-warm-up", k.topic("find-coordinator-warm-up"), 1), 8, "a first use of groups")
    for version in range(4):
        k.ask(FindCoordinatorRequest("find", GROUP), version, "one group")
    for version in (4, 5, 6):
        k.ask(
            FindCoordinatorRequest(key_type=GROUP, coordinator_keys=["find", "other"]), version, "two groups"
        )
    k.ask(FindCoordinatorRequest("", GROUP), 3, "no group id")
    k.ask(FindCoordinatorRequest(key_type=GROUP, coordinator_keys=[""]), 4, "no group id, in a list")
    k.ask(FindCoordinatorRequest(key_type=GROUP, coordinator_keys=[]), 4, "no keys")
    k.ask(FindCoordinatorRequest("find", 7), 3, "an invalid key type")
    k.ask(
        FindCoordinatorRequest(key_type=7, coordinator_keys=["find"]),
        4,
        "an invalid key type, in a list",
    )
    k.ask(
        FindCoordinatorRequest(key_type=SHARE, coordinator_keys=["not a key of a share"]),
        6,
        "an invalid share key",
    )
    k.ask(
        FindCoordinatorRequest(key_type=SHARE, coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAA:0"]),
        5,
        "a share's key in version 5",
    )


@story("A group's states, as described and listed")
def describe_groups(k: Narrator) -> None:
    group, topic = "described", k.topic("described")
    mine = Only("groups", "group_id", group)
    for version in range(7):
        k.ask(DescribeGroupsRequest(["described-never"]), version, "an unknown group")
    k.ask(commit(group, topic, 5), 8, "a commit makes a group")
    k.ask(DescribeGroupsRequest([group]), 5, "without members")
    me = k.ask(
        join(group, topics=(topic.name,), instance="an-instance"), 5, "a static member joins"
    ).member_id
    k.ask(DescribeGroupsRequest([group]), 5, "before the leader has assigned")
    k.ask(sync(group, 1, me, {me: assignment(topic.name, 0)}, instance="an-instance"), 3, "syncs")
    for version in range(7):
        k.ask(
            DescribeGroupsRequest([group], include_authorized_operations=version >= 3),
            version,
            "with a member",
        )
    for version in range(6):
        k.ask(ListGroupsRequest(), version, "listed", only=mine)
    k.ask(ListGroupsRequest(["Stable"]), 4, "listed by its state", only=mine)
    k.ask(ListGroupsRequest(["stable"]), 4, "listed by its state in small letters", only=mine)
    k.ask(ListGroupsRequest(["Empty", "Dead"]), 4, "other states", only=mine)
    k.ask(ListGroupsRequest(["NoSuchState"]), 4, "an unknown state", only=mine)
    k.ask(ListGroupsRequest([], ["classic"]), 5, "classic ones", only=mine)
    k.ask(ListGroupsRequest([], ["Consumer"]), 5, "those of the new protocol", only=mine)
    k.ask(ListGroupsRequest([], ["nonsense"]), 5, "an unknown type", only=mine)
    k.ask(LeaveGroupRequest(group, "", [MemberIdentity("", "an-instance")]), 4, "the member is removed")
    k.ask(
        DescribeGroupsRequest([group, "described-never", ""]),
        5,
        "empty again, a missing one, and one without a name",
    )


@story("Groups are deleted when they are empty")
def delete_groups(k: Narrator) -> None:
    topic = k.topic("delete-groups")
    for version in range(3):
        group = f"delete-group-{version}"
        k.ask(commit(group, topic, 5), 8, "a commit makes a group")
        k.ask(DeleteGroupsRequest([group]), version, "deleted")
        k.ask(DeleteGroupsRequest([group]), version, "it is gone")
        k.ask(committed(group, topic, 7, 0), 7, "with its offsets")
    joined = k.ask(join("delete-living"), 3, "a group with a member")
    k.ask(sync("delete-living", joined.generation_id, joined.member_id, {joined.member_id: b""}), 3, "syncs")
    k.ask(
        DeleteGroupsRequest(["delete-living", "delete-never", ""]),
        2,
        "one alive, one unknown, one without a name",
    )
    k.ask(LeaveGroupRequest("delete-living", joined.member_id), 2, "the member leaves")
    k.ask(DeleteGroupsRequest(["delete-living"]), 2, "deleted when empty")
    k.ask(DeleteGroupsRequest([]), 2, "no groups")
