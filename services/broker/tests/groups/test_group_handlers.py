"""The group APIs from request bytes to response bytes, in every version, over a coordinator with its
log.
"""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from ponor_broker.handlers.groups.find_coordinator import FindCoordinatorHandler
from ponor_broker.handlers.groups.group_membership import NAMED_MEMBERS_MAX
from ponor_broker.handlers.groups.groups import group_handlers
from ponor_broker.requests.api_handler import ApiHandler, RequestContext
from ponor_broker.requests.connection import ConnectionContext
from ponor_kafka.api import ApiKey, api_of
from ponor_kafka.codec import decode, decode_response, encode
from ponor_kafka.errors import ErrorCode
from ponor_kafka.internal_topics import OFFSETS_TOPIC
from ponor_kafka.message import ZERO_UUID, Message
from ponor_kafka.messages.delete_groups import DeleteGroupsRequest
from ponor_kafka.messages.describe_groups import DescribeGroupsRequest
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest
from ponor_kafka.messages.heartbeat import HeartbeatRequest
from ponor_kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
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
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ponor_kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

TOPIC_ID = bytes(15) + b"\x01"
OTHER_ID = bytes(15) + b"\x07"


class Wire:
    """Sends requests as bytes and reads answers from bytes, as a client at one version would."""

    def __init__(self, world: Any) -> None:
        self.world = world
        shards = world.coordinator.shards
        finds = FindCoordinatorHandler(shards, shards, shards, lambda node_id, listener: None)
        self.handlers = {h.key: h for h in group_handlers(world.coordinator, world, world.clock)}
        self.handlers[ApiKey.FIND_COORDINATOR] = ApiHandler(ApiKey.FIND_COORDINATOR, 0, 6, finds.handle)

    def send(self, key: ApiKey, version: int, request: Message) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._send(key, version, request))

    async def _send(self, key: ApiKey, version: int, request: Message) -> Any:
        handler = self.handlers[key]
        assert handler.version_min <= version <= handler.version_max
        read, _ = decode(key, version, encode(request, version))
        response = await handler.handle(
            read, RequestContext(version, "client", ConnectionContext("127.0.0.1:5"))
        )
        assert response is not None
        answered, _ = decode_response(key, version, encode(response, version))
        return answered


@pytest.fixture
def wire(world: Any) -> Wire:
    return Wire(world)


def versions(key: ApiKey) -> list[int]:
    api = api_of(key)
    return list(range(api.version_min, api.version_max + 1))


def test_every_version_of_the_codec_is_handled(wire: Wire) -> None:
    for key, handler in wire.handlers.items():
        # Version 1 describes topologies (KIP-1331), which groups do not have yet.
        newest = 0 if key is ApiKey.STREAMS_GROUP_DESCRIBE else versions(key)[-1]
        assert [handler.version_min, handler.version_max] == [versions(key)[0], newest], key
    assert len(wire.handlers) == 15


def joining(version: int, member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000 if version >= 1 else -1,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", b"mine")],
    )


async def join(wire: Wire, version: int) -> Any:
    member_id = ""
    if version >= 4:
        first = await wire.send(ApiKey.JOIN_GROUP, version, joining(version))
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        member_id = first.member_id
    answer = wire.send(ApiKey.JOIN_GROUP, version, joining(version, member_id))
    await wire.world.clock.pass_ms(3_000)
    return await answer


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
async def test_a_member_joins_and_leaves_in_every_version(wire: Wire, version: int) -> None:
    joined = await join(wire, version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id == joined.members[0].member_id
    assert joined.members[0].metadata == b"mine"
    assert joined.member_id.startswith("client-")
    who = {"group_id": "g", "member_id": joined.member_id, "generation_id": 1}
    plan = [SyncGroupRequestAssignment(joined.member_id, b"all")]
    request = SyncGroupRequest(**who, assignments=plan)
    if version >= 5:
        request.protocol_type, request.protocol_name = "consumer", "range"
    synced = await wire.send(ApiKey.SYNC_GROUP, min(version, 5), request)
    assert (synced.error_code, synced.assignment) == (0, b"all")
    beat = await wire.send(ApiKey.HEARTBEAT, min(version, 4), HeartbeatRequest(**who))
    assert beat.error_code == ErrorCode.NONE
    leave_version = min(version, 5)
    leaving = (
        LeaveGroupRequest("g", members=[MemberIdentity(joined.member_id), MemberIdentity("unknown")])
        if leave_version >= 3
        else LeaveGroupRequest("g", joined.member_id)
    )
    left = await wire.send(ApiKey.LEAVE_GROUP, leave_version, leaving)
    assert left.error_code == ErrorCode.NONE
    assert [m.error_code for m in left.members] == (
        [0, ErrorCode.UNKNOWN_MEMBER_ID] if leave_version >= 3 else []
    )
    beat = await wire.send(ApiKey.HEARTBEAT, min(version, 4), HeartbeatRequest(**who))
    assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_sync_group_requires_the_protocol_of_the_group(wire: Wire) -> None:
    joined = await join(wire, 9)
    request = SyncGroupRequest("g", 1, joined.member_id, protocol_type="consumer", protocol_name="sticky")
    answer = await wire.send(ApiKey.SYNC_GROUP, 5, request)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    answer = await wire.send(ApiKey.SYNC_GROUP, 5, SyncGroupRequest("g", 1, joined.member_id))
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
async def test_finding_a_coordinator(wire: Wire, version: int) -> None:
    if version >= 4:
        request = FindCoordinatorRequest(coordinator_keys=["g", "h"], key_type=0)
        answers = (await wire.send(ApiKey.FIND_COORDINATOR, version, request)).coordinators
        assert [answer.key for answer in answers] == ["g", "h"]
    else:
        answers = [await wire.send(ApiKey.FIND_COORDINATOR, version, FindCoordinatorRequest(key="g"))]
    for answer in answers:
        assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 65_537, "127.0.0.1", 9092)


async def test_keys_of_share_partitions_are_checked(wire: Wire) -> None:
    topic_id = "AAAAAAAAAAAAAAAAAAAABw"
    texts = ("g:{}:3", "a:b:{}:-1", "g:{}", " :{}:3", "g:x:3", "g:{}:x")
    keys = [text.format(topic_id) for text in texts]
    request = FindCoordinatorRequest(coordinator_keys=keys, key_type=2)
    answers = (await wire.send(ApiKey.FIND_COORDINATOR, 6, request)).coordinators
    assert [answer.key for answer in answers] == keys
    invalid = ErrorCode.INVALID_REQUEST
    assert [answer.error_code for answer in answers] == [0, 0, invalid, invalid, invalid, invalid]


async def test_other_key_types_are_refused_and_a_missing_coordinator_is_retriable(wire: Wire) -> None:
    for version, key_type in ((6, 3), (5, 2)):
        request = FindCoordinatorRequest(coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAABw:3"], key_type=key_type)
        (answer,) = (await wire.send(ApiKey.FIND_COORDINATOR, version, request)).coordinators
        assert (answer.error_code, answer.node_id) == (ErrorCode.INVALID_REQUEST, -1)
        assert f"key type {key_type} has no coordinator" in answer.error_message
    request = FindCoordinatorRequest(coordinator_keys=["t"], key_type=1)
    (answer,) = (await wire.send(ApiKey.FIND_COORDINATOR, 6, request)).coordinators
    assert (answer.error_code, answer.node_id) == (0, 65_537)
    for index in range(4):
        wire.world.close_partition(index)
    answer = await wire.send(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g"))
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        -1,
        "",
        -1,
    )


def committing(
    version: int, *partitions: OffsetCommitRequestPartition, topic: str = "t", topic_id: bytes = TOPIC_ID
) -> OffsetCommitRequest:
    by_id = version >= 10
    wanted = OffsetCommitRequestTopic(
        "" if by_id else topic, topic_id if by_id else ZERO_UUID, list(partitions)
    )
    return OffsetCommitRequest("g", topics=[wanted])


def fetching(version: int, indexes: list[int] | None) -> OffsetFetchRequest:
    if version < 8:
        return OffsetFetchRequest("g", None if indexes is None else [OffsetFetchRequestTopic("t", indexes)])
    by_id = version >= 10
    topics = (
        None
        if indexes is None
        else [OffsetFetchRequestTopics("" if by_id else "t", TOPIC_ID if by_id else ZERO_UUID, indexes)]
    )
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics)])


def fetched(answer: Any, version: int) -> dict[int, tuple[int, int, str, int]]:
    holder = answer.groups[0] if version >= 8 else answer
    assert holder.error_code == ErrorCode.NONE
    for topic in holder.topics:
        assert topic.topic_id == TOPIC_ID if version >= 10 else topic.name == "t"
    return {
        row.partition_index: (row.committed_offset, row.committed_leader_epoch, row.metadata, row.error_code)
        for topic in holder.topics
        for row in topic.partitions
    }


async def test_groups_and_partitions_named_repeatedly_are_fetched_once(wire: Wire) -> None:
    """An offset has up to 4 KiB of metadata: a request of 4 MiB could have an answer of several GB."""
    await wire.send(ApiKey.OFFSET_COMMIT, 8, committing(8, OffsetCommitRequestPartition(1, 40)))
    some = OffsetFetchRequestTopics("t", ZERO_UUID, [1, 0, 1])
    asked = [("g", None), ("h", None), ("g", [some, some]), ("g", None), ("g", [some])]
    groups = [OffsetFetchRequestGroup(group_id, topics=topics) for group_id, topics in asked]
    answer = await wire.send(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups))
    assert [
        (group.group_id, [row.partition_index for topic in group.topics for row in topic.partitions])
        for group in answer.groups
    ] == [("g", [1]), ("h", []), ("g", [1, 0])]


@pytest.mark.parametrize("version", [7, 8, 10])
async def test_a_partition_named_repeatedly_has_one_row(wire: Wire, version: int) -> None:
    await wire.send(ApiKey.OFFSET_COMMIT, 8, committing(8, OffsetCommitRequestPartition(1, 40)))
    answer = await wire.send(ApiKey.OFFSET_FETCH, version, fetching(version, [1] * 1_000))
    (topic,) = (answer.groups[0] if version >= 8 else answer).topics
    assert [(row.partition_index, row.committed_offset) for row in topic.partitions] == [(1, 40)]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
async def test_commits_of_every_version_are_fetched_by_every_version(wire: Wire, version: int) -> None:
    epoch = 3 if version >= 6 else -1
    request = committing(
        version, OffsetCommitRequestPartition(1, 40, 3, "where I was"), OffsetCommitRequestPartition(4, 1)
    )
    answer = await wire.send(ApiKey.OFFSET_COMMIT, version, request)
    rows = {row.partition_index: row.error_code for row in answer.topics[0].partitions}
    assert rows == {1: 0, 4: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    for fetch_version in versions(ApiKey.OFFSET_FETCH):
        told_epoch = epoch if fetch_version >= 5 else -1
        some = await wire.send(ApiKey.OFFSET_FETCH, fetch_version, fetching(fetch_version, [1, 2]))
        assert fetched(some, fetch_version) == {1: (40, told_epoch, "where I was", 0), 2: (-1, -1, "", 0)}
        if fetch_version >= 2:
            everything = await wire.send(ApiKey.OFFSET_FETCH, fetch_version, fetching(fetch_version, None))
            assert fetched(everything, fetch_version) == {1: (40, told_epoch, "where I was", 0)}


async def test_the_longest_retention_time_is_accepted(wire: Wire) -> None:
    """The sum with the clock has more than 64 bits: the commit counted as in flight for ever."""
    request = committing(2, OffsetCommitRequestPartition(1, 40))
    request.retention_time_ms = (1 << 63) - 1
    answer = await wire.send(ApiKey.OFFSET_COMMIT, 2, request)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
    found = await wire.send(ApiKey.OFFSET_FETCH, 8, fetching(8, [1]))
    assert fetched(found, 8)[1][0] == 40


async def test_invalid_commits_are_refused_by_partition(wire: Wire) -> None:
    long_note = OffsetCommitRequestPartition(0, 1, -1, "x" * 4_097)
    fits = OffsetCommitRequestPartition(1, 1, -1, "é" * 2_048)
    answer = await wire.send(ApiKey.OFFSET_COMMIT, 9, committing(9, long_note, fits))
    codes = [row.error_code for row in answer.topics[0].partitions]
    assert codes == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    answer = await wire.send(
        ApiKey.OFFSET_COMMIT, 9, committing(9, OffsetCommitRequestPartition(0, 1), topic="nowhere")
    )
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = await wire.send(
        ApiKey.OFFSET_COMMIT, 10, committing(10, OffsetCommitRequestPartition(0, 1), topic_id=OTHER_ID)
    )
    assert answer.topics[0].topic_id == OTHER_ID
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    request = committing(9, OffsetCommitRequestPartition(0, 1))
    request.generation_id_or_member_epoch, request.member_id = 5, "unknown"
    answer = await wire.send(ApiKey.OFFSET_COMMIT, 9, request)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_offsets_of_a_deleted_topic_are_hidden_from_a_new_topic_of_its_name(wire: Wire) -> None:
    await wire.send(ApiKey.OFFSET_COMMIT, 9, committing(9, OffsetCommitRequestPartition(0, 7)))
    wire.world.topics["t"] = (UUID(bytes=OTHER_ID), 4)
    answer = await wire.send(ApiKey.OFFSET_FETCH, 9, fetching(9, [0]))
    assert fetched(answer, 9) == {0: (-1, -1, "", 0)}
    answer = await wire.send(ApiKey.OFFSET_FETCH, 10, fetching(10, [0]))
    assert answer.groups[0].topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
async def test_not_coordinator_is_reported_where_each_version_expects_it(wire: Wire, version: int) -> None:
    wire.world.close_partition(wire.world.coordinator.shards.partition_of("g"))
    answer = await wire.send(ApiKey.OFFSET_FETCH, version, fetching(version, [1]))
    if version >= 8:
        assert answer.groups[0].error_code == ErrorCode.NOT_COORDINATOR
    else:
        assert answer.error_code == (ErrorCode.NOT_COORDINATOR if version >= 2 else ErrorCode.NONE)
        # Unlike Kafka, for clients that ignore the error of the whole answer.
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
async def test_describing_groups(wire: Wire, version: int) -> None:
    joined = await join(wire, 9)
    request = DescribeGroupsRequest(["g", "nowhere"], include_authorized_operations=version >= 3)
    rebalancing, _ = (await wire.send(ApiKey.DESCRIBE_GROUPS, version, request)).groups
    assert (rebalancing.group_state, rebalancing.protocol_data) == ("CompletingRebalance", "")
    assert rebalancing.members[0].member_metadata == b""
    plan = [SyncGroupRequestAssignment(joined.member_id, b"all")]
    await wire.send(ApiKey.SYNC_GROUP, 4, SyncGroupRequest("g", 1, joined.member_id, assignments=plan))
    stable, missing = (await wire.send(ApiKey.DESCRIBE_GROUPS, version, request)).groups
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == ("Stable", "consumer", "range")
    (member,) = stable.members
    assert (member.member_id, member.client_id, member.client_host) == (
        joined.member_id,
        "client",
        "/127.0.0.1",
    )
    assert (member.member_metadata, member.member_assignment) == (b"mine", b"all")
    assert stable.authorized_operations == (
        (1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11) if version >= 3 else -(1 << 31)
    )
    assert missing.group_state == "Dead"
    assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
async def test_listing_groups(wire: Wire, version: int) -> None:
    await join(wire, 3)
    await wire.send(
        ApiKey.OFFSET_COMMIT,
        2,
        OffsetCommitRequest(
            "alone", topics=[OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 1)])]
        ),
    )
    every = (await wire.send(ApiKey.LIST_GROUPS, version, ListGroupsRequest())).groups
    assert {(g.group_id, g.protocol_type) for g in every} == {("g", "consumer"), ("alone", "")}
    if version >= 4:
        assert {g.group_state for g in every} == {"CompletingRebalance", "Empty"}
        empty = await wire.send(ApiKey.LIST_GROUPS, version, ListGroupsRequest(states_filter=["empty"]))
        assert [g.group_id for g in empty.groups] == ["alone"]
    if version >= 5:
        assert {g.group_type for g in every} == {"classic"}
        other = await wire.send(ApiKey.LIST_GROUPS, version, ListGroupsRequest(types_filter=["share"]))
        assert not other.groups


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
async def test_deleting_groups(wire: Wire, version: int) -> None:
    await join(wire, 3)
    await wire.send(
        ApiKey.OFFSET_COMMIT,
        2,
        OffsetCommitRequest(
            "alone", topics=[OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 1)])]
        ),
    )
    answer = await wire.send(ApiKey.DELETE_GROUPS, version, DeleteGroupsRequest(["alone", "g", "nowhere"]))
    assert {row.group_id: row.error_code for row in answer.results} == {
        "alone": ErrorCode.NONE,
        "g": ErrorCode.NON_EMPTY_GROUP,
        "nowhere": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    if version >= 3:
        assert [bool(row.error_message) for row in answer.results] == [False, True, True]
    assert OFFSETS_TOPIC in wire.world.topics


async def test_offsets_are_deleted_by_partition(wire: Wire) -> None:
    joined = await join(wire, 9)
    await wire.send(ApiKey.OFFSET_COMMIT, 9, committing(9, OffsetCommitRequestPartition(0, 7)))
    topics = [
        OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0), OffsetDeleteRequestPartition(9)]),
        OffsetDeleteRequestTopic("nowhere", [OffsetDeleteRequestPartition(0)]),
    ]
    request = OffsetDeleteRequest("g", topics)
    answer = await wire.send(ApiKey.OFFSET_DELETE, 0, request)
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC  # in doubt: what the member subscribes to cannot be read
    rows = [(t.name, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions]
    assert rows == [("t", 0, subscribed), ("t", 9, missing), ("nowhere", 0, missing)]
    await wire.send(ApiKey.LEAVE_GROUP, 5, LeaveGroupRequest("g", members=[MemberIdentity(joined.member_id)]))
    await wire.send(ApiKey.OFFSET_COMMIT, 9, committing(9, OffsetCommitRequestPartition(0, 7)))
    answer = await wire.send(ApiKey.OFFSET_DELETE, 0, request)
    assert [p.error_code for t in answer.topics for p in t.partitions] == [0, missing, missing]
    assert fetched(await wire.send(ApiKey.OFFSET_FETCH, 9, fetching(9, [0])), 9) == {0: (-1, -1, "", 0)}
    answer = await wire.send(ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest("unknown", topics[1:]))
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
async def test_a_commit_to_a_missing_group_gets_the_error_of_its_version(wire: Wire, version: int) -> None:
    request = committing(version, OffsetCommitRequestPartition(0, 7, -1, "x" * 5_000))
    request.generation_id_or_member_epoch, request.member_id = 3, "m"
    answer = await wire.send(ApiKey.OFFSET_COMMIT, version, request)
    expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
    assert answer.topics[0].partitions[0].error_code == expected


async def test_a_commit_of_unknown_partitions_creates_no_group(wire: Wire) -> None:
    request = committing(9, OffsetCommitRequestPartition(0, 7), topic="nowhere")
    await wire.send(ApiKey.OFFSET_COMMIT, 9, request)
    await wire.send(ApiKey.OFFSET_COMMIT, 9, OffsetCommitRequest("g"))
    assert not (await wire.send(ApiKey.LIST_GROUPS, 5, ListGroupsRequest())).groups


async def test_metadata_is_measured_in_utf16_units_as_kafka_does(wire: Wire) -> None:
    notes = ["é" * 4_096, "é" * 4_097, "\U0001f600" * 2_048, "\U0001f600" * 2_049]
    rows = [OffsetCommitRequestPartition(n % 4, 1, -1, note) for n, note in enumerate(notes)]
    answer = await wire.send(ApiKey.OFFSET_COMMIT, 9, committing(9, *rows))
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert [p.error_code for p in answer.topics[0].partitions] == [0, too_large, 0, too_large]


async def test_an_assigned_id_with_an_instance_id_is_refused(wire: Wire) -> None:
    first = await wire.send(ApiKey.JOIN_GROUP, 9, joining_request())
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    answer = await wire.send(
        ApiKey.JOIN_GROUP, 9, joining_request(member_id=first.member_id, group_instance_id="i")
    )
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def joining_request(**fields: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        "g",
        10_000,
        20_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", b"mine")],
        **fields,
    )


async def test_a_request_that_names_more_members_than_a_group_may_have_is_refused_whole(wire: Wire) -> None:
    joined = await join(wire, 9)
    member = MemberIdentity(joined.member_id)
    leaving = LeaveGroupRequest("g", members=[member, *[MemberIdentity("absent")] * NAMED_MEMBERS_MAX])
    answer = await wire.send(ApiKey.LEAVE_GROUP, 5, leaving)
    assert (answer.error_code, answer.members) == (ErrorCode.INVALID_REQUEST, [])
    plan = [SyncGroupRequestAssignment(joined.member_id, b"all")] * (NAMED_MEMBERS_MAX + 1)
    syncing = SyncGroupRequest(
        "g", 1, joined.member_id, protocol_type="consumer", protocol_name="range", assignments=plan
    )
    answer = await wire.send(ApiKey.SYNC_GROUP, 5, syncing)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    beating = HeartbeatRequest("g", 1, joined.member_id)
    beat = await wire.send(ApiKey.HEARTBEAT, 4, beating)
    assert beat.error_code == ErrorCode.NONE, "the member is still there"
