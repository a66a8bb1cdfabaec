"""Consumer groups over a coordinator with its log: durability, restarts, conversion, and the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.coordination.transactional_append import TransactionalProducer
from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest
from ponor_broker.groups.events import JoinRequest, MemberClaim
from ponor_broker.groups.instructions import JoinAnswer
from ponor_broker.groups.member import JoinProtocol
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.handlers.groups.groups import group_handlers
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.connection import ConnectionContext
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode, decode_response, encode
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.message import Message
from ponor_kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ponor_kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ponor_kafka.messages.describe_groups import DescribeGroupsRequest
from ponor_kafka.messages.list_groups import ListGroupsRequest
from ponor_kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from s3stream.errors import StorageFailedError, WalFullError

TOPIC_ID = bytes(15) + b"\x01"
ALL = {TOPIC_ID: frozenset({0, 1, 2, 3})}
JOIN = HeartbeatRequest("m", 0, rebalance_timeout_ms=60_000, topics=frozenset({"t"}), owned={})


@pytest.fixture
async def small(world_type: Any) -> AsyncIterator[Any]:
    world = world_type(GroupSettings(offsets_topic_partitions=1, offsets_rewrite_log_bytes_min=16 << 10))
    world.topics[OFFSETS_TOPIC] = (UUID(int=99), 1)
    await world.start()
    yield world
    await world.coordinator.close()
    assert world.failures == []


def beat(world: Any, request: HeartbeatRequest) -> asyncio.Task[HeartbeatAnswer]:
    return asyncio.create_task(world.coordinator.consumer_heartbeat("g", request))


async def join(world: Any, member_id: str = "m") -> HeartbeatAnswer:
    answer: HeartbeatAnswer = await world.coordinator.consumer_heartbeat(
        "g", replace(JOIN, member_id=member_id)
    )
    return answer


async def join_classic(world: Any) -> JoinAnswer:
    protocols = (JoinProtocol("range", bytes(6) + b"\xff\xff\xff\xff"),)
    request = JoinRequest("", None, "c", "/h", 10_000, 10_000, "consumer", protocols, False, False)
    joining: asyncio.Task[JoinAnswer] = asyncio.create_task(world.coordinator.join_group("g", request))
    await world.clock.pass_ms(4_000)
    return await joining


async def test_a_restart_keeps_members_and_assignments(small: Any) -> None:
    assert (await join(small)).assignment == ALL
    await small.kill()
    await small.start()
    quiet = await beat(small, HeartbeatRequest("m", 2))
    assert (quiet.error, quiet.member_epoch, quiet.assignment) == (ErrorCode.NONE, 2, None)
    await small.clock.pass_ms(44_000)
    assert (await beat(small, HeartbeatRequest("m", 2))).error is ErrorCode.NONE
    await small.clock.pass_ms(46_000)
    assert (await beat(small, HeartbeatRequest("m", 2))).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_answers_wait_for_the_records_before_them(small: Any) -> None:
    await join(small)
    small.open[0].is_slow = True
    changed = beat(small, HeartbeatRequest("m", 2, topics=frozenset({"t", "u"})))
    await small.clock.settle()
    quiet = beat(small, HeartbeatRequest("m", 2))
    await small.clock.settle()
    assert not changed.done()
    assert not quiet.done()
    small.open[0].sync()
    assert [answer.error for answer in await asyncio.gather(changed, quiet)] == [ErrorCode.NONE] * 2


async def test_members_do_not_wait_for_each_others_writes_to_join(small: Any) -> None:
    small.open[0].is_slow = True
    joins = [beat(small, replace(JOIN, member_id=f"m{number}")) for number in range(3)]
    await small.clock.settle()
    small.open[0].sync()
    answers = await asyncio.gather(*joins)
    assert {answer.error for answer in answers} == {ErrorCode.NONE}
    assert len(small.coordinator.consumer_group("g")) == 3


async def test_a_refused_batch_leaves_no_group(small: Any) -> None:
    small.open[0].refusal = WalFullError("full")
    assert (await join(small)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert small.coordinator.consumer_group("g") is ErrorCode.GROUP_ID_NOT_FOUND
    small.open[0].refusal = None
    assert (await join(small)).error is ErrorCode.NONE


async def test_a_failed_batch_makes_the_shard_load_the_log_again(small: Any) -> None:
    await join(small)
    small.open[0].is_slow = True
    second = asyncio.ensure_future(join(small, "n"))
    await small.clock.settle()
    small.open[0].fail(StorageFailedError("the disk broke"))
    assert (await second).error in {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
    small.open[0].is_slow = False
    await small.clock.settle()
    assert list(small.coordinator.consumer_group("g").contents.members) == ["m"]
    assert (await beat(small, HeartbeatRequest("m", 2))).error is ErrorCode.NONE


async def test_an_expiry_that_the_log_refuses_is_repeated(small: Any) -> None:
    await join(small)
    small.open[0].refusal = WalFullError("full")
    await small.clock.pass_ms(46_000)
    assert len(small.coordinator.consumer_group("g")) == 1
    small.open[0].refusal = None
    await small.clock.pass_ms(1_000)
    assert len(small.coordinator.consumer_group("g")) == 0


async def test_empty_groups_change_their_type(small: Any) -> None:
    await join(small)
    claim = MemberClaim("m", None, 2)
    offset = {("t", 0): CommittedOffset(7, topic_id=TOPIC_ID)}
    assert await small.coordinator.commit_offsets("g", claim, offset) is ErrorCode.NONE
    await beat(small, HeartbeatRequest("m", -1))
    joined = await join_classic(small)
    assert joined.error is ErrorCode.NONE
    await small.coordinator.leave_group("g", (MemberClaim(joined.member_id),))
    await small.clock.settle()
    assert (await join(small)).assignment == ALL
    await small.kill()
    await small.start()
    assert list(small.coordinator.consumer_group("g").contents.members) == ["m"]
    assert small.coordinator.fetch_offsets("g", [("t", 0)])[0][1].offset == 7


async def test_classic_requests_of_a_member_with_heartbeats(small: Any) -> None:
    await join(small)
    assert small.coordinator.heartbeat("g", MemberClaim("m", None, 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    claims = (MemberClaim("n"), MemberClaim("m"), MemberClaim("", "one"))
    left = await small.coordinator.leave_group("g", claims)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert [error for _, error in left.results] == [unknown, ErrorCode.NONE, unknown]
    assert (await beat(small, HeartbeatRequest("m", 2))).error is unknown


async def test_an_empty_group_is_deleted_with_all_its_records(small: Any) -> None:
    await join(small)
    assert await small.coordinator.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
    await beat(small, HeartbeatRequest("m", -1))
    assert await small.coordinator.delete_group("g") is ErrorCode.NONE
    await small.kill()
    await small.start()
    assert small.coordinator.consumer_group("g") is ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_rewrite_keeps_the_group(small: Any) -> None:
    await join(small)
    for number in range(400):
        topics = frozenset({"t", f"u{number}"})
        epoch = small.coordinator.consumer_group("g").contents.currents["m"].epoch
        answer = await beat(small, HeartbeatRequest("m", epoch, topics=topics))
        assert answer.error is ErrorCode.NONE
    await small.clock.settle()
    assert small.open[0].log_start_offset > 0
    before = small.coordinator.consumer_group("g").contents
    await small.kill()
    await small.start()
    after = small.coordinator.consumer_group("g").contents
    assert vars(after) == vars(before)


async def send(world: Any, key: ApiKey, version: int, request: Message) -> Any:
    handlers = {each.key: each for each in group_handlers(world.coordinator, world, world.clock)}
    read, _ = decode(key, version, encode(request, version))
    context = RequestContext(version, "client", ConnectionContext("127.0.0.1:5"))
    response = await handlers[key].handle(read, context)
    assert response is not None
    answered, _ = decode_response(key, version, encode(response, version))
    return answered


FULL: dict[str, Any] = {
    "group_id": "g",
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1,
    "topic_partitions": [],
}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST, "GroupId can't be empty."),
        ({"member_id": " "}, ErrorCode.INVALID_REQUEST, "MemberId can't be empty."),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST, "InstanceId can't be empty."),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST, "RackId can't be empty."),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid."),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST, "InstanceId can't be null."),
        (
            {"rebalance_timeout_ms": -1},
            ErrorCode.INVALID_REQUEST,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            {"topic_partitions": None},
            ErrorCode.INVALID_REQUEST,
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            {"subscribed_topic_names": None},
            ErrorCode.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (
            {"server_assignor": "x"},
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            "ServerAssignor x is not supported. Supported assignors: uniform, range.",
        ),
        ({"member_epoch": 3}, ErrorCode.GROUP_ID_NOT_FOUND, "Consumer group g not found."),
    ],
)
async def test_requests_of_invalid_form_get_kafkas_messages(
    small: Any, changes: dict[str, Any], error: ErrorCode, message: str
) -> None:
    request = ConsumerGroupHeartbeatRequest(**{**FULL, "subscribed_topic_names": ["t"], **changes})
    answer = await send(small, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
    assert (answer.error_code, answer.error_message) == (error, message)


async def test_a_group_s_own_timeout_and_interval_are_in_force(small: Any) -> None:
    small.group_configs["g"] = {
        "consumer.session.timeout.ms": "60000",
        "consumer.heartbeat.interval.ms": "15000",
    }
    request = ConsumerGroupHeartbeatRequest(**{**FULL, "subscribed_topic_names": ["t"], "member_id": ""})
    answer = await send(small, ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, request)
    assert answer.heartbeat_interval_ms == 15_000
    described = ConsumerGroupDescribeRequest(["g"])
    await small.clock.pass_ms(59_000)
    assert len((await send(small, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, described)).groups[0].members) == 1
    # A change applies from the next heartbeat on.
    small.group_configs["g"] = {"consumer.session.timeout.ms": "45000"}
    beat = ConsumerGroupHeartbeatRequest(
        "g", answer.member_id, answer.member_epoch, rebalance_timeout_ms=-1, subscribed_topic_names=None
    )
    assert (await send(small, ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, beat)).heartbeat_interval_ms == 5_000
    await small.clock.pass_ms(46_000)
    assert (await send(small, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, described)).groups[0].members == []


async def test_the_wire_shows_the_group(small: Any) -> None:
    request = ConsumerGroupHeartbeatRequest(**{**FULL, "subscribed_topic_names": ["t"], "member_id": ""})
    answer = await send(small, ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, request)
    assert (answer.error_code, answer.member_epoch, answer.heartbeat_interval_ms) == (0, 2, 5_000)
    assert answer.member_id
    assert [(row.topic_id, row.partitions) for row in answer.assignment.topic_partitions] == [
        (TOPIC_ID, [0, 1, 2, 3])
    ]
    described = await send(small, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, ConsumerGroupDescribeRequest(["g", "h"]))
    group, missing = described.groups
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
    assert (group.assignor_name, group.members[0].member_type) == ("uniform", 1)
    assert group.members[0].assignment.topic_partitions[0].topic_name == "t"
    assert group.members[0].target_assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    assert (missing.error_code, missing.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group h not found.",
    )
    listed = await send(small, ApiKey.LIST_GROUPS, 5, ListGroupsRequest(types_filter=["Consumer"]))
    assert [(row.group_id, row.group_state, row.group_type) for row in listed.groups] == [
        ("g", "Stable", "consumer")
    ]
    classic = await send(small, ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(["g"]))
    assert classic.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    for epoch, error in ((2, ErrorCode.NONE), (0, ErrorCode.STALE_MEMBER_EPOCH)):
        asked = OffsetFetchRequestGroup("g", answer.member_id, epoch, topics=None)
        fetched = await send(small, ApiKey.OFFSET_FETCH, 9, OffsetFetchRequest(groups=[asked]))
        assert fetched.groups[0].error_code == error


async def test_a_closed_partition_answers_waiting_members(small: Any) -> None:
    await join(small)
    small.open[0].is_slow = True
    second = asyncio.ensure_future(join(small, "n"))
    await small.clock.settle()
    small.close_partition(0)
    await small.clock.settle()
    assert (await second).error is ErrorCode.NOT_COORDINATOR
    await small.clock.pass_ms(60_000)  # no timer of the closed shard fires


async def test_a_write_that_takes_too_long_is_answered(small: Any) -> None:
    small.open[0].is_slow = True
    slow = asyncio.ensure_future(join(small))
    await small.clock.pass_ms(small.settings.coordinator_write_timeout_ms)
    assert (await slow).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    small.open[0].is_slow = False
    small.open[0].sync()
    await small.clock.settle()
    assert (await join(small)).assignment == ALL


async def test_sessions_pause_while_the_broker_may_not_answer(small: Any) -> None:
    await join(small)
    await small.clock.be_absent_ms(120_000)
    assert len(small.coordinator.consumer_group("g")) == 1


async def test_a_transaction_commits_offsets_of_a_member(small: Any) -> None:
    await join(small)
    shard = small.coordinator.shards.by_index[0]
    offsets = {("t", 0): CommittedOffset(7, topic_id=TOPIC_ID)}
    for claim, error in (
        (MemberClaim("m", None, 2), ErrorCode.NONE),
        (MemberClaim("", None, -1), ErrorCode.NONE),
        (MemberClaim("m", None, 3), ErrorCode.ILLEGAL_GENERATION),
        (MemberClaim("n", None, 2), ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        producer = TransactionalProducer(5, 0, shard.begin_verification(5, 0, generation=1))
        assert await shard.commit_in_transaction("g", claim, offsets, producer) is error


async def test_an_offset_of_a_subscribed_topic_is_kept(small: Any) -> None:
    small.topics["u"] = (UUID(int=2), 1)
    await join(small)
    for topic in ("t", "u"):
        offsets = {(topic, 0): CommittedOffset(7, commit_timestamp_ms=small.clock.wall_ms())}
        claim = MemberClaim("m", None, 2)
        assert await small.coordinator.commit_offsets("g", claim, offsets) is ErrorCode.NONE
    answers = await small.coordinator.delete_offsets("g", [("t", 0), ("u", 0)])
    assert answers == {("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ("u", 0): ErrorCode.NONE}
