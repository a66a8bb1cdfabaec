"""Share groups over a coordinator with its log and a persister, from request bytes to response bytes."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.coordination.share_persister import SharePartitionKey
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.member import JoinProtocol
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.settings import GroupSettings
from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ponor_kafka.messages.describe_groups import DescribeGroupsRequest
from ponor_kafka.messages.list_groups import ListGroupsRequest
from ponor_kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from s3stream.errors import StorageFailedError

from services.broker.tests.share_groups_kit import (
    ALL,
    INTERVAL_MS,
    TOPIC,
    TOPIC_ID,
    Wire,
    key,
    partitions_of,
    wire,
)

__all__ = ["wire"]  # the fixture


async def test_a_member_gets_partitions_once_their_states_exist(wire: Wire) -> None:
    first = await wire.beat("m", 0, ["t"])
    assert (first.member_epoch, first.heartbeat_interval_ms, partitions_of(first)) == (2, 5_000, {})
    assert {each: state.start_offset for each, state in wire.world.persister.states.items()} == {
        key(partition): -1 for partition in range(4)
    }
    await wire.world.clock.pass_ms(INTERVAL_MS)
    second = await wire.beat("m", 2)
    assert (second.member_epoch, partitions_of(second)) == (3, ALL)
    third = await wire.beat("m", 3)
    assert (third.member_epoch, partitions_of(third)) == (3, None)


async def test_a_group_s_own_timeout_and_interval_are_in_force(wire: Wire) -> None:
    wire.world.group_configs["g"] = {
        "share.session.timeout.ms": "60000",
        "share.heartbeat.interval.ms": "15000",
    }
    answer = await wire.beat("m", 0, ["t"])
    assert answer.heartbeat_interval_ms == 15_000
    assert (await wire.beat("m", 0, ["t"], group="other")).heartbeat_interval_ms == 5_000
    await wire.world.clock.pass_ms(59_000)
    assert [each.member_id for each in (await wire.describe()).members] == ["m"]
    assert (await wire.describe("other")).members == []
    await wire.world.clock.pass_ms(2_000)
    assert (await wire.describe()).members == []


async def test_members_share_the_partitions(wire: Wire) -> None:
    wire.world.topics["t"] = (TOPIC, 2)
    epochs = {name: await wire.join(name, "t") for name in "abc"}
    held: dict[str, dict[bytes, list[int]]] = {}
    await wire.world.clock.pass_ms(INTERVAL_MS)
    for name in "abc":
        for _ in range(2):
            answer = await wire.beat(name, epochs[name], ["t"])
            epochs[name] = answer.member_epoch
        held[name] = partitions_of(answer) or {}
    counts = [sum(index in rows.get(TOPIC_ID, []) for rows in held.values()) for index in range(2)]
    assert counts == [2, 2]
    assert all(held.values())


async def test_a_leaving_member_frees_its_partitions(wire: Wire) -> None:
    await wire.join("a", "t")
    epoch = await wire.join("b", "t")
    assert (await wire.beat("a", -1)).member_epoch == -1
    await wire.world.clock.pass_ms(INTERVAL_MS)
    await wire.beat("b", epoch)
    described = await wire.describe()
    assert [
        (m.member_id, [r.partitions for r in m.assignment.topic_partitions]) for m in described.members
    ] == [("b", [[0, 1, 2, 3]])]
    assert (described.group_state, described.assignor_name) == ("Stable", "simple")


async def test_a_silent_member_is_removed(wire: Wire) -> None:
    epoch = await wire.join("m", "t")
    await wire.world.clock.pass_ms(46_000)
    assert (await wire.beat("m", epoch)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await wire.describe()).group_state == "Empty"


async def test_a_restart_keeps_members_targets_and_initialized_partitions(wire: Wire) -> None:
    epoch = await wire.join("m", "t")
    before = await wire.describe()
    await wire.restart()
    assert await wire.describe() == before
    calm = await wire.beat("m", epoch)
    assert (calm.error_code, calm.member_epoch, partitions_of(calm)) == (0, epoch, None)


async def test_a_rewrite_of_the_log_keeps_the_group(wire: Wire) -> None:
    epoch = await wire.join("m", "t")
    for number in range(400):
        answer = await wire.beat("m", epoch, ["t", f"u{number}"])
        epoch = answer.member_epoch
        await wire.world.clock.pass_ms(INTERVAL_MS)
    assert wire.world.open[0].log_start_offset > 0
    before = await wire.describe()
    await wire.restart()
    assert await wire.describe() == before


async def test_a_failed_initialization_is_repeated(wire: Wire) -> None:
    wire.world.persister.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await wire.beat("m", 0, ["t"])).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    wire.world.persister.refusal = None
    assert (await wire.beat("m", 0, ["t"])).error_code == 0
    await wire.world.clock.pass_ms(INTERVAL_MS)
    answer = await wire.beat("m", 2)
    assert partitions_of(answer) == ALL


async def test_a_coordinator_that_died_during_an_initialization_repeats_it(wire: Wire) -> None:
    wire.world.persister.opened.clear()
    joining = asyncio.create_task(wire.beat("m", 0, ["t"]))
    await wire.world.clock.settle()
    joining.cancel()
    await wire.restart()
    wire.world.persister.opened.set()
    assert (await wire.beat("m", 2)).error_code == 0
    await wire.world.clock.pass_ms(INTERVAL_MS)
    assert partitions_of(await wire.beat("m", 2)) == ALL


async def test_only_one_heartbeat_waits_for_the_persister(wire: Wire) -> None:
    wire.world.persister.opened.clear()
    joining = asyncio.create_task(wire.beat("a", 0, ["t"]))
    await wire.world.clock.settle()
    assert (await wire.beat("b", 0, ["t"])).error_code == 0
    assert not joining.done()
    wire.world.persister.opened.set()
    assert (await joining).error_code == 0


async def test_new_partitions_are_initialized_and_assigned(wire: Wire) -> None:
    epoch = await wire.join("m", "t")
    wire.world.topics["t"] = (TOPIC, 6)
    wire.world.topics["other"] = (UUID(int=2), 1)
    wire.world.coordinator.topics_changed()
    epoch = (await wire.beat("m", epoch)).member_epoch
    assert key(5) in wire.world.persister.states
    await wire.world.clock.pass_ms(INTERVAL_MS)
    answer = await wire.beat("m", epoch)
    assert partitions_of(answer) == {TOPIC_ID: [0, 1, 2, 3, 4, 5]}


async def test_the_states_of_a_deleted_topic_are_deleted(wire: Wire) -> None:
    wire.world.topics["u"] = (UUID(int=2), 1)
    await wire.join("m", "t", "u")
    del wire.world.topics["u"]
    wire.world.coordinator.topics_changed()
    wire.world.coordinator.topics_deleted()
    await wire.world.clock.settle()
    assert set(wire.world.persister.states) == {key(partition) for partition in range(4)}
    assert [row.topic_name for row in (await wire.offsets()).topics] == ["t"]


async def test_the_deletion_of_states_is_repeated(wire: Wire) -> None:
    wire.world.topics["u"] = (UUID(int=2), 1)
    await wire.join("m", "u")
    wire.world.persister.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
    del wire.world.topics["u"]
    wire.world.coordinator.topics_changed()
    wire.world.coordinator.topics_deleted()
    await wire.world.clock.settle()
    wire.world.persister.refusal = None
    assert wire.world.persister.states
    await wire.restart()
    await wire.world.clock.pass_ms(INTERVAL_MS)
    assert not wire.world.persister.states


async def test_epochs_are_fenced_with_kafkas_messages(wire: Wire) -> None:
    epoch = await wire.join("m", "t")
    newer = await wire.beat("m", epoch + 1)
    assert newer.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert newer.error_message == (
        f"The share group member has a greater member epoch ({epoch + 1}) than the one known by the group "
        f"coordinator ({epoch}). The member must abandon all its partitions and rejoin."
    )
    older = await wire.beat("m", epoch - 2)
    assert older.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert f", and it does not match the previous member epoch ({epoch - 1})." in older.error_message
    assert (await wire.beat("m", epoch - 1)).error_code == 0  # the answer with the newer one was lost


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ShareGroupHeartbeatRequest("g", "", 0, None, ["t"]), "MemberId can't be empty."),
        (ShareGroupHeartbeatRequest("", "m", 0, None, ["t"]), "GroupId can't be empty."),
        (ShareGroupHeartbeatRequest("g", "m", 0, " ", ["t"]), "RackId can't be empty."),
        (ShareGroupHeartbeatRequest("g", "m", 0), "SubscribedTopicNames must be set in first request."),
        (ShareGroupHeartbeatRequest("g", "m", -2), "MemberEpoch is invalid."),
    ],
)
async def test_the_form_of_heartbeats_is_checked(
    wire: Wire, request_: ShareGroupHeartbeatRequest, message: str
) -> None:
    answer = await wire.send(ApiKey.SHARE_GROUP_HEARTBEAT, request_)
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, message)


async def test_heartbeats_of_missing_groups_and_members(wire: Wire) -> None:
    missing = await wire.beat("m", 3)
    assert (missing.error_code, missing.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Share group g not found.",
    )
    assert (await wire.beat("m", -1)).error_message == "Group g not found."
    await wire.join("a", "t")
    stranger = await wire.beat("m", 3)
    assert (stranger.error_code, stranger.error_message) == (
        ErrorCode.UNKNOWN_MEMBER_ID,
        "Member m is not a member of group g.",
    )


async def test_a_full_group_refuses_members(world_type: Any) -> None:
    world = world_type(GroupSettings(offsets_topic_partitions=1, group_share_members_max=1))
    world.topics[OFFSETS_TOPIC] = (UUID(int=99), 1)
    await world.start()
    wire = Wire(world)
    await wire.join("a", "t")
    refused = await wire.beat("b", 0, ["t"])
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        "The share group has reached its maximum capacity of 1 members.",
    )
    await world.coordinator.close()


async def test_a_refused_first_heartbeat_leaves_no_group(wire: Wire) -> None:
    wire.world.open[0].refusal = StorageFailedError("full")
    assert (await wire.beat("m", 0, ["t"])).error_code != 0
    wire.world.open[0].refusal = None
    assert (await wire.describe()).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert not wire.world.coordinator.budget.groups


async def test_other_requests_do_not_find_a_share_group(wire: Wire) -> None:
    await wire.join("m", "t")
    coordinator = wire.world.coordinator
    protocols = (JoinProtocol("range", bytes(6) + b"\xff\xff\xff\xff"),)
    request = JoinRequest("", None, "c", "/h", 10_000, 10_000, "consumer", protocols, False, False)
    assert (await coordinator.join_group("g", request)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    claim = MemberClaim("m", None, 3)
    assert coordinator.heartbeat("g", claim) is ErrorCode.UNKNOWN_MEMBER_ID
    synced = await coordinator.sync_group("g", SyncRequest(claim, None, None, {}))
    assert synced.error is ErrorCode.UNKNOWN_MEMBER_ID
    commit = await coordinator.commit_offsets("g", MemberClaim(""), {("t", 0): CommittedOffset(1)})
    assert commit is ErrorCode.GROUP_ID_NOT_FOUND
    assert coordinator.fetch_offsets("g", [("t", 0)]) is ErrorCode.GROUP_ID_NOT_FOUND
    assert await coordinator.delete_offsets("g", [("t", 0)]) is ErrorCode.GROUP_ID_NOT_FOUND
    consumer = ConsumerGroupHeartbeatRequest(
        "g", "c", 0, rebalance_timeout_ms=1, subscribed_topic_names=["t"], topic_partitions=[]
    )
    refused = await wire.send(ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer)
    assert refused.error_message == "Group g is not a consumer group."
    described = await wire.send(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(["g"]))
    assert described.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    listed = await wire.send(ApiKey.LIST_GROUPS, ListGroupsRequest([], ["Share"]))
    row = listed.groups[0]
    assert (row.group_id, row.protocol_type, row.group_state, row.group_type) == (
        "g",
        "share",
        "Stable",
        "share",
    )


async def test_a_share_heartbeat_does_not_join_another_group(wire: Wire) -> None:
    await wire.world.coordinator.commit_offsets("g", MemberClaim(""), {("t", 0): CommittedOffset(1)})
    refused = await wire.beat("m", 0, ["t"])
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group g is not a share group.",
    )


async def test_a_deleted_group_has_neither_records_nor_states(wire: Wire) -> None:
    await wire.join("m", "t")
    assert await wire.delete_group() is ErrorCode.NON_EMPTY_GROUP
    await wire.beat("m", -1)
    wire.world.persister.refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await wire.delete_group() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    wire.world.persister.refusal = None
    assert await wire.delete_group() is ErrorCode.NONE
    assert not wire.world.persister.states
    assert await wire.delete_group() is ErrorCode.GROUP_ID_NOT_FOUND
    await wire.restart()
    assert (await wire.describe()).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_nobody_joins_while_the_states_of_the_group_are_deleted(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wire.join("m", "t")
    await wire.beat("m", -1)
    persister, opened = wire.world.persister, asyncio.Event()
    delete = persister.delete

    async def slow(each: SharePartitionKey) -> ErrorCode:
        await opened.wait()
        return await delete(each)  # type: ignore[no-any-return]

    monkeypatch.setattr(persister, "delete", slow)
    deletion = asyncio.create_task(wire.delete_group())
    await wire.world.clock.settle()
    assert (await wire.beat("n", 0, ["t"])).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await wire.delete_offsets("t")).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await wire.alter(5)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    opened.set()
    assert await deletion is ErrorCode.NONE
    await wire.join("n", "t")
    assert set(persister.states) == {key(partition) for partition in range(4)}


async def test_states_are_not_deleted_while_they_are_created(wire: Wire) -> None:
    persister = wire.world.persister
    persister.opened.clear()
    joining = asyncio.create_task(wire.beat("m", 0, ["t"]))
    await wire.world.clock.settle()
    assert (await wire.beat("m", -1)).error_code == 0
    deletion = asyncio.create_task(wire.delete_group())
    await wire.world.clock.settle()
    persister.opened.set()
    assert await deletion is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await joining).error_code == 0
    assert await wire.delete_group() is ErrorCode.NONE
    assert not persister.states


async def test_an_empty_group_does_not_expire(wire: Wire) -> None:
    await wire.join("m", "t")
    await wire.beat("m", -1)
    for _ in range(3):
        await wire.world.clock.pass_ms(604_800_000)
    assert (await wire.describe()).group_state == "Empty"
