"""StreamsGroupHeartbeat and StreamsGroupDescribe as bytes, over a coordinator with its log: internal topics
are created, and the group survives a kill.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.groups.events import JoinRequest, MemberClaim
from ponor_broker.groups.member import JoinProtocol
from ponor_broker.groups.records import CommittedOffset
from ponor_broker.groups.server_assigned_groups import WORKING_MAX
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.groups.streams.configured_topology import StatusCode
from ponor_broker.groups.streams_groups import CREATIONS_MAX
from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.messages.list_groups import ListGroupsRequest
from ponor_kafka.messages.streams_group_describe import StreamsGroupDescribeRequest
from ponor_kafka.messages.streams_group_heartbeat import (
    CopartitionGroup,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestEndpoint,
    StreamsGroupHeartbeatRequestTaskIds,
    Subtopology,
    TaskOffset,
    TopicInfo,
    Topology,
)

from services.broker.tests.groups.test_group_handlers import Wire

COUNT = Topology(
    1,
    [
        Subtopology(
            "0", ["t"], repartition_sink_topics=["app-r"], copartition_groups=[CopartitionGroup([0])]
        ),
        Subtopology(
            "1",
            state_changelog_topics=[
                TopicInfo("app-c", topic_configs=[KeyValue("cleanup.policy", "compact")])
            ],
            repartition_source_topics=[TopicInfo("app-r")],
        ),
    ],
)


@pytest.fixture
async def wire(world_type: Any) -> AsyncIterator[Wire]:
    world = world_type(
        GroupSettings(
            offsets_topic_partitions=1,
            group_streams_initial_rebalance_delay_ms=0,
            group_streams_assignment_interval_ms=0,
        )
    )
    world.topics[OFFSETS_TOPIC] = (UUID(int=99), 1)
    await world.start()
    yield Wire(world)
    await world.coordinator.close()
    assert world.failures == []


def joining(member_id: str = "m", **changed: Any) -> StreamsGroupHeartbeatRequest:
    request = StreamsGroupHeartbeatRequest(
        group_id="app",
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=5_000,
        topology=COUNT,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
        client_tags=[KeyValue("zone", "a")],
        user_endpoint=StreamsGroupHeartbeatRequestEndpoint("host", 80),
    )
    for name, value in changed.items():
        setattr(request, name, value)
    return request


async def send(
    wire: Wire, request: Any, key: ApiKey = ApiKey.STREAMS_GROUP_HEARTBEAT, version: int = 0
) -> Any:
    answer = wire.send(key, 5 if key is ApiKey.LIST_GROUPS else version, request)
    while not answer.done():
        await wire.world.clock.pass_ms(1)
    return answer.result()


async def ready(wire: Wire) -> Any:
    """Join, wait for the internal topics, and return the answer with all tasks."""
    answer = await send(wire, joining())
    assert answer.error_code == ErrorCode.NONE
    await wire.world.clock.pass_ms(1_000)
    beat = StreamsGroupHeartbeatRequest("app", "m", answer.member_epoch, 0)
    return await send(wire, beat)


async def test_internal_topics_are_created_once_with_their_configs(wire: Wire) -> None:
    answer = await send(wire, joining())
    assert [status.status_code for status in answer.status] == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert answer.active_tasks == []
    again = await send(wire, StreamsGroupHeartbeatRequest("app", "m", answer.member_epoch, 0))
    assert again.error_code == ErrorCode.NONE
    await wire.world.clock.pass_ms(1_000)
    assert wire.world.created == [("app-c", 4, {"cleanup.policy": "compact"}), ("app-r", 4, {})]
    complete = await send(wire, StreamsGroupHeartbeatRequest("app", "m", again.member_epoch, 0))
    assert complete.status == []
    assert {(row.subtopology_id, *row.partitions) for row in complete.active_tasks} == {
        ("0", 0, 1, 2, 3),
        ("1", 0, 1, 2, 3),
    }
    assert complete.standby_tasks == complete.warmup_tasks == []
    assert complete.heartbeat_interval_ms == 5_000
    (row,) = complete.partitions_by_user_endpoint
    assert (row.user_endpoint.host, row.user_endpoint.port) == ("host", 80)
    assert [(each.topic, list(each.partitions)) for each in row.active_partitions] == [
        ("t", [0, 1, 2, 3]),
        ("app-r", [0, 1, 2, 3]),
    ]


async def test_version_1_asks_for_no_topology_description(wire: Wire) -> None:
    answer = await send(wire, joining(), version=1)
    assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, 2)
    assert not answer.topology_description_required
    assert answer.acceptable_recovery_lag == -1, "there are no warm-up tasks, so the lag has no meaning"


async def test_a_group_s_own_standbys_are_assigned_from_the_next_heartbeat_on(wire: Wire) -> None:
    await ready(wire)
    second = await send(wire, joining("n", process_id="q"))
    wire.world.group_configs["app"] = {
        "streams.num.standby.replicas": "1",
        "streams.heartbeat.interval.ms": "7000",
    }
    beat = StreamsGroupHeartbeatRequest("app", "n", second.member_epoch, 0)
    assert (await send(wire, beat)).heartbeat_interval_ms == 7_000
    described = await send(wire, StreamsGroupDescribeRequest(["app"]), ApiKey.STREAMS_GROUP_DESCRIBE)
    standby = [
        row for member in described.groups[0].members for row in member.target_assignment.standby_tasks
    ]
    assert sum(len(row.partitions) for row in standby) == 4, "one of each task with state"
    assert {row.subtopology_id for row in standby} == {"1"}


async def test_a_failed_creation_is_reported_and_repeated(wire: Wire) -> None:
    wire.world.refusals["app-r"] = "no room"
    answer = await send(wire, joining())
    await wire.world.clock.pass_ms(1_000)
    answer = await send(wire, StreamsGroupHeartbeatRequest("app", "m", answer.member_epoch, 0))
    (status,) = answer.status
    assert status.status_detail == "Internal topics are missing: app-r; Creation failed: app-r (no room)."
    attempts = len(wire.world.created)
    await send(wire, StreamsGroupHeartbeatRequest("app", "m", answer.member_epoch, 0))
    assert len(wire.world.created) == attempts
    wire.world.refusals.clear()
    wire.world.clock.wall_ahead_ms -= 3_600_000  # an administrator corrects the clock
    await wire.world.clock.pass_ms(5_000)
    answer = await send(wire, StreamsGroupHeartbeatRequest("app", "m", answer.member_epoch, 0))
    await wire.world.clock.pass_ms(1_000)
    answer = await send(wire, StreamsGroupHeartbeatRequest("app", "m", answer.member_epoch, 0))
    assert answer.status == []


async def test_the_creations_in_progress_are_bounded(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    create, opened = wire.world.create, asyncio.Event()

    async def slow(*args: Any, **options: Any) -> object:
        await opened.wait()
        return await create(*args, **options)

    monkeypatch.setattr(wire.world, "create", slow)
    before = len(wire.world.coordinator.shards.tasks)
    answers = [await send(wire, joining(group_id=f"app-{number}")) for number in range(60)]
    assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
    assert len(wire.world.coordinator.shards.tasks) - before <= CREATIONS_MAX + 5  # and timers
    opened.set()
    await wire.world.clock.pass_ms(1_000)
    for number, answer in enumerate(answers):
        beat = StreamsGroupHeartbeatRequest(f"app-{number}", "m", answer.member_epoch, 0)
        assert (await send(wire, beat)).status == []


async def test_the_computations_in_progress_are_bounded(wire: Wire) -> None:
    wire.world.topics["t"] = (UUID(int=1), 600)
    wire.world.coordinator.topics_changed()
    before = len(wire.world.coordinator.shards.tasks)
    topology = Topology(1, [Subtopology("0", ["t"])])
    answers = [
        wire.send(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, joining(group_id=f"app-{number}", topology=topology))
        for number in range(60)
    ]
    await asyncio.sleep(0)
    assert len(wire.world.coordinator.shards.tasks) - before <= WORKING_MAX + 5  # and timers
    await wire.world.clock.pass_ms(2_000)
    for number, answer in enumerate(answers):
        epoch = (await answer).member_epoch
        beat = StreamsGroupHeartbeatRequest(f"app-{number}", "m", epoch, 0)
        beat.active_tasks, beat.standby_tasks, beat.warmup_tasks = [], [], []
        (row,) = (await send(wire, beat)).active_tasks
        assert len(row.partitions) == 600


async def test_a_group_is_described_and_listed(wire: Wire) -> None:
    answer = await ready(wire)
    request = StreamsGroupDescribeRequest(["app", "missing"])
    described, missing = (await send(wire, request, ApiKey.STREAMS_GROUP_DESCRIBE)).groups
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (described.group_state, described.group_epoch) == ("Stable", answer.member_epoch)
    first, second = described.topology.subtopologies
    assert list(first.source_topics) == ["t"]
    assert [(topic.name, topic.partitions) for topic in second.state_changelog_topics] == [("app-c", 4)]
    (member,) = described.members
    assert (member.process_id, member.topology_epoch, member.user_endpoint.host) == ("p", 1, "host")
    assert [(tag.key, tag.value) for tag in member.client_tags] == [("zone", "a")]
    assert member.assignment.active_tasks == member.target_assignment.active_tasks
    (listed,) = (await send(wire, ListGroupsRequest([], ["Streams"]), ApiKey.LIST_GROUPS)).groups
    assert (listed.group_type, listed.protocol_type, listed.group_state) == ("streams", "streams", "Stable")


async def test_a_group_survives_a_kill_and_is_deleted_without_members(wire: Wire) -> None:
    answer = await ready(wire)
    world, claim = wire.world, MemberClaim("m", generation=answer.member_epoch)
    commits = {("t", 0): CommittedOffset(5, topic_id=bytes(15) + b"\x01")}
    assert await world.coordinator.commit_offsets("app", claim, commits) is ErrorCode.NONE
    await world.kill()
    await world.start()
    wire = Wire(world)
    owned = [
        StreamsGroupHeartbeatRequestTaskIds(row.subtopology_id, row.partitions) for row in answer.active_tasks
    ]
    beat = StreamsGroupHeartbeatRequest("app", "m", answer.member_epoch, 0)
    beat.active_tasks, beat.standby_tasks, beat.warmup_tasks = owned, [], []
    again = await send(wire, beat)
    assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, answer.member_epoch)
    assert again.active_tasks is None
    assert await world.coordinator.delete_group("app") is ErrorCode.NON_EMPTY_GROUP
    left = await send(wire, StreamsGroupHeartbeatRequest("app", "m", -1, 0))
    assert (left.error_code, left.member_epoch, left.heartbeat_interval_ms) == (ErrorCode.NONE, -1, 0)
    assert await world.coordinator.delete_group("app") is ErrorCode.NONE
    missing = await send(wire, StreamsGroupHeartbeatRequest("app", "m", 3, 0))
    assert (missing.error_code, missing.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Streams group app not found.",
    )


async def test_groups_change_their_type_only_while_they_are_empty(wire: Wire) -> None:
    world = wire.world
    answer = await ready(wire)
    protocols = (JoinProtocol("range", b""),)
    join = JoinRequest("", None, "c", "/h", 10_000, 10_000, "consumer", protocols, False, True)
    refused = await world.coordinator.join_group("app", join)
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert await world.coordinator.commit_offsets("old", MemberClaim(""), {}) is ErrorCode.NONE
    other = joining()
    other.group_id = "old"
    assert (await send(wire, other)).error_code == ErrorCode.NONE
    await send(wire, StreamsGroupHeartbeatRequest("app", "m", -1, 0))
    joined = world.coordinator.join_group("app", join)
    assert answer.error_code == ErrorCode.NONE
    task = asyncio.ensure_future(joined)
    while not task.done():
        await world.clock.pass_ms(1_000)
    assert task.result().error is ErrorCode.NONE
    refused = await send(wire, joining())
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group app is not a streams group.",
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"rack_id": " "}, "RackId can't be empty."),
        ({"instance_id": "i"}, "Static membership is not yet supported."),
        ({"task_offsets": [TaskOffset("0", 0, 1)]}, "TaskOffsets are not supported yet."),
        ({"task_end_offsets": []}, "TaskEndOffsets are not supported yet."),
        (
            {"warmup_tasks": [StreamsGroupHeartbeatRequestTaskIds("0", [0])]},
            "WarmupTasks are not supported yet.",
        ),
        ({"topology": None}, "Topology must be non-null when (re-)joining."),
        ({"active_tasks": None}, "ActiveTasks must be empty when (re-)joining."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"member_epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": 1}, "Topology can only be provided when (re-)joining."),
        (
            {
                "member_epoch": 1,
                "active_tasks": [StreamsGroupHeartbeatRequestTaskIds("0", list(range(20_001)))],
            },
            "A member reports at most 20000 tasks.",
        ),
        (
            {"topology": Topology(0, [Subtopology("0", ["t"], source_topic_regex=["a.*"])])},
            "Regular expressions for source topics are not supported yet.",
        ),
    ],
)
async def test_the_form_of_a_request_is_checked(wire: Wire, changed: dict[str, Any], message: str) -> None:
    answer = await send(wire, joining(**changed))
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, message)


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (
            Topology(0, [Subtopology("0", ["t"]), Subtopology("0", ["t"])]),
            "Two subtopologies have the same id",
        ),
        (
            Topology(0, [Subtopology("0", ["t"], copartition_groups=[CopartitionGroup([1])])]),
            "A copartition group refers to a topic",
        ),
        (Topology(0, [Subtopology("0")]), "No source topics found for subtopology 0"),
    ],
)
async def test_an_invalid_topology_is_refused(wire: Wire, topology: Topology, message: str) -> None:
    answer = await send(wire, joining(topology=topology))
    assert answer.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert answer.error_message.startswith(message)
    assert not wire.world.coordinator.shards.by_index[0].groups()
