"""Answers that come from the image alone: metadata, features, elections, moves, what has settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from ponor.metadata.v1.records_pb2 import PartitionChanged, Record, RecordBatch, StreamClosed
from ponor_broker.handlers.cluster.api_versions import ApiVersionsHandler
from ponor_broker.handlers.cluster.describe_cluster import describe_cluster
from ponor_broker.handlers.cluster.log_dirs import LOG_DIR, alter_replica_log_dirs, describe_log_dirs
from ponor_broker.handlers.configs.config_resources import list_config_resources
from ponor_broker.handlers.metadata.metadata import MetadataHandler
from ponor_broker.handlers.topics.elect_leaders import elect_leaders
from ponor_broker.handlers.topics.partition_reassignments import PartitionReassignmentsHandler
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.handoff.move_operations import MoveOperations
from ponor_broker.partitions.partition_manager import PartitionManager
from ponor_broker.partitions.topics.announcements import Announcements, leader_hint
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.requests.connection import ConnectionContext, Response
from ponor_broker.requests.dispatch import Reply
from ponor_broker.requests.request_rows import ROWS_MAX
from ponor_kafka.codec import decode_as, encode
from ponor_kafka.errors import ErrorCode, KafkaWireError
from ponor_kafka.headers import RequestHeader
from ponor_kafka.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ponor_kafka.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ponor_kafka.messages.api_versions import ApiVersionsRequest
from ponor_kafka.messages.describe_cluster import DescribeClusterRequest
from ponor_kafka.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ponor_kafka.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ponor_kafka.messages.list_config_resources import ListConfigResourcesRequest
from ponor_kafka.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from ponor_kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ponor_metadata.nouns.topics import MOVES, PARTITIONS, TOPICS, MoveCause, MoveRow, PartitionRow
from ponor_runtime.disk import Buffer
from ponor_runtime.system import SystemClock
from ponor_runtime.turns import at_once, turn

from services.broker.tests.image_kit import CLUSTER_ID, NODE, OTHER_NODE, ImageKit, context
from services.broker.tests.serving_kit import Permission

VERSION = 12


class Bodies:
    """Stands for `dispatch.Reply`: keeps the body's buffers."""

    def __init__(self) -> None:
        self.connection = ConnectionContext("peer:1")
        self.kept: list[Buffer] = []

    def __call__(self, body: list[Buffer]) -> None:
        self.kept = body


def metadata_handler(
    kit: ImageKit, announcements: Announcements | None = None, **bounds: int
) -> MetadataHandler:
    return MetadataHandler(
        kit.topics,
        cast("TopicAdmin", None),
        announcements or Announcements(kit.topics),
        lambda _coroutine, _name: None,
        node_id=NODE,
        auto_create=False,
        partitions_of_new=lambda _: 1,
        **bounds,
    )


def ask_metadata(handler: MetadataHandler, request: MetadataRequest) -> tuple[MetadataResponse, Buffer]:
    bodies = Bodies()
    frame = bytearray(encode(request, VERSION))
    handler.start(frame, RequestHeader(3, VERSION, 1, "client", 0), cast("Reply", bodies))
    (body,) = bodies.kept
    return decode_as(MetadataResponse, VERSION, body)[0], body


def test_a_leader_is_named_when_its_meta_stream_exists() -> None:
    kit = ImageKit()
    row = kit.put_topic("t", 2, is_announced=False)
    handler = metadata_handler(kit)

    def leaders() -> list[tuple[int, int]]:
        handler.invalidate()
        (topic,) = ask_metadata(handler, MetadataRequest(topics=None))[0].topics
        return [(one.error_code, one.leader_id) for one in topic.partitions]

    unknown = (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert leaders() == [unknown, unknown]
    assert kit.topics.leader("t", 1) is None
    kit.announce(row, 1)
    assert leaders() == [unknown, (ErrorCode.NONE, NODE)]
    assert kit.topics.leader("t", 1) is not None
    kit.announce(row, 0)
    assert leaders() == [(ErrorCode.NONE, NODE)] * 2


def test_no_leader_is_named_while_a_former_one_has_the_meta_stream_open() -> None:
    kit = ImageKit()
    row = kit.put_topic("t", 2)
    announcements = Announcements(kit.topics)
    handler = metadata_handler(kit, announcements)
    refused = PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not here")

    def changed(batch: RecordBatch) -> None:
        announcements.image_changed(batch)
        handler.invalidate()

    def leaders() -> list[tuple[int, int]]:
        (topic,) = ask_metadata(handler, MetadataRequest(topics=None))[0].topics
        hint = leader_hint(kit.topics, "t", 1, refused)
        assert (hint is not None) == (topic.partitions[1].leader_id != -1)
        return [(one.error_code, one.leader_id) for one in topic.partitions]

    first = (ErrorCode.NONE, NODE)
    assert leaders() == [first, first]
    # The leader died: another is elected, and the streams are open at the first one until its log is
    # recovered.
    kit.elect(row, 1, OTHER_NODE, 1)
    elected = PartitionChanged(topic_id=row.topic_id, partition=1, leader_id=OTHER_NODE, leader_epoch=1)
    changed(RecordBatch(records=[Record(partition_changed=elected)]))
    assert leaders() == [first, (ErrorCode.LEADER_NOT_AVAILABLE, -1)]
    kit.set_meta_stream(row, 1, is_open=False, at=NODE, epoch=0)
    changed(RecordBatch(records=[Record(stream_closed=StreamClosed())]))
    assert leaders() == [first, (ErrorCode.NONE, OTHER_NODE)]
    kit.set_meta_stream(row, 1, is_open=True, at=OTHER_NODE, epoch=1)
    handler.invalidate()
    assert leaders() == [first, (ErrorCode.NONE, OTHER_NODE)]
    # The same process may lead again at a later epoch: what it opened before is not open for that.
    kit.elect(row, 1, OTHER_NODE, 2)
    elected = PartitionChanged(topic_id=row.topic_id, partition=1, leader_id=OTHER_NODE, leader_epoch=2)
    changed(RecordBatch(records=[Record(partition_changed=elected)]))
    assert leaders() == [first, (ErrorCode.LEADER_NOT_AVAILABLE, -1)]


def test_a_cached_answer_is_reused_until_the_image_changes() -> None:
    kit = ImageKit()
    kit.put_topic("t", 50)
    handler = metadata_handler(kit)
    everything = MetadataRequest(topics=None)
    answer, body = ask_metadata(handler, everything)
    assert [len(topic.partitions) for topic in answer.topics] == [50]
    assert ask_metadata(handler, everything)[1] is body
    kit.put_topic("u", 2)
    handler.invalidate()
    answer, other = ask_metadata(handler, everything)
    assert other is not body
    assert [topic.name for topic in answer.topics] == ["t", "u"]


def test_cached_answers_are_bounded_and_errors_are_not_cached() -> None:
    kit = ImageKit()
    kit.put_topic("t", 100)
    names = [kit.put_topic(f"u-{number}").name for number in range(9)]
    handler = metadata_handler(kit, kept_bytes_max=10_000)

    def ask(*wanted: str) -> Buffer:
        topics = [MetadataRequestTopic(name=name) for name in wanted]
        return ask_metadata(handler, MetadataRequest(topics=topics, allow_auto_topic_creation=False))[1]

    first = ask("t", names[0])
    assert ask("t", names[0]) is first
    for name in names[1:]:
        ask("t", name)
    assert ask("t", names[0]) is not first, "nine answers of 3 kB are more than 10 kB"
    assert ask("missing") is not ask("missing")


def begin_long(handler: MetadataHandler, bodies: Bodies) -> asyncio.Future[Response]:
    """Ask for all topics where that takes more than one step."""
    frame = bytearray(encode(MetadataRequest(topics=None), VERSION))
    answer = handler.start(frame, RequestHeader(3, VERSION, 1, "client", 0), cast("Reply", bodies))
    assert isinstance(answer, asyncio.Future)
    assert not bodies.kept
    return answer


async def test_a_large_answer_is_built_in_steps_and_shared() -> None:
    kit = ImageKit()
    for name in ("a", "b", "c"):
        kit.put_topic(name, 1_000)
    handler = metadata_handler(kit)
    asked = [Bodies() for _ in range(3)]
    await asyncio.gather(*(begin_long(handler, bodies) for bodies in asked))
    (body,) = asked[0].kept
    assert all(bodies.kept[0] is body for bodies in asked)
    expected = at_once(metadata_handler(kit).describe(MetadataRequest(topics=None), VERSION))
    assert body == encode(expected, VERSION)
    assert [len(topic.partitions) for topic in expected.topics] == [1_000] * 3
    assert ask_metadata(handler, MetadataRequest(topics=None))[1] is body


async def test_an_answer_that_a_change_overtook_is_not_cached() -> None:
    kit = ImageKit()
    for name in ("a", "b", "c"):
        row = kit.put_topic(name, 1_000)
    handler = metadata_handler(kit)
    bodies, later = Bodies(), Bodies()
    overtaken = begin_long(handler, bodies)
    await turn()
    kit.image[TOPICS].delete(row.topic_id)
    kit.put_broker(OTHER_NODE, fenced=True)
    handler.invalidate()
    await overtaken
    await begin_long(handler, later)
    (body,) = later.kept
    answer, _ = decode_as(MetadataResponse, VERSION, body)
    assert [topic.name for topic in answer.topics] == ["a", "b"]
    assert [broker.node_id for broker in answer.brokers] == [NODE]


def test_topics_by_id_twice_and_not_at_all() -> None:
    kit = ImageKit()
    topic_id = kit.put_topic("t").topic_id
    handler = metadata_handler(kit)
    wanted = [
        MetadataRequestTopic(topic_id=topic_id, name=None),
        MetadataRequestTopic(topic_id=topic_id, name=None),
        MetadataRequestTopic(topic_id=b"\7" * 16, name=None),
        MetadataRequestTopic(name="bad name"),
    ]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    answer = at_once(handler.describe(request, VERSION))
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("t", ErrorCode.NONE),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert at_once(handler.describe(MetadataRequest(topics=[]), VERSION)).topics == []
    (refused,) = at_once(handler.describe(MetadataRequest(topics=wanted[:1]), 11)).topics
    assert refused.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "code"),
    [
        (None, -1, ErrorCode.NONE),
        (CLUSTER_ID, NODE, ErrorCode.NONE),
        ("another", NODE, ErrorCode.REBOOTSTRAP_REQUIRED),
        (CLUSTER_ID, OTHER_NODE, ErrorCode.REBOOTSTRAP_REQUIRED),
    ],
)
async def test_api_versions_checks_cluster_and_node_of_the_request(
    cluster_id: str | None, node_id: int, code: ErrorCode
) -> None:
    kit = ImageKit()
    handler = ApiVersionsHandler(list, kit.topics, Permission(SystemClock()).serving, node_id=NODE)
    connection = type("Connection", (), {})()
    request_context = context(5)
    object.__setattr__(request_context, "connection", connection)
    answer = await handler.handle(ApiVersionsRequest("a", "1", cluster_id, node_id), request_context)
    assert answer.error_code == code
    if code is ErrorCode.NONE:
        levels = [(row.name, row.max_version_level) for row in answer.finalized_features]
        groups = [("group.version", 1), ("share.version", 1), ("streams.version", 1)]
        assert levels == [("ponor.metadata.level", 1), *groups, ("transaction.version", 2)]


async def test_elections_and_moves_with_one_replica() -> None:
    kit = ImageKit()
    kit.put_topic("t", 2)
    asked = ElectLeadersRequest(0, [TopicPartitions("t", [0, 9]), TopicPartitions("none", [0])])
    results = (await elect_leaders(kit.topics, asked, context(2))).replica_election_results
    assert [[each.error_code for each in result.partition_result] for result in results] == [
        [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    ]
    assert (
        await elect_leaders(kit.topics, ElectLeadersRequest(9, [TopicPartitions("t", [0])]), context(2))
    ).error_code == (ErrorCode.INVALID_REQUEST)
    moves = PartitionReassignmentsHandler(kit.topics, cast("MoveOperations", None))

    async def move(replicas: Sequence[int] | None, partition: int = 0) -> int:
        wanted = ReassignableTopic("t", [ReassignablePartition(partition, replicas)])
        answer = await moves.alter(AlterPartitionReassignmentsRequest(topics=[wanted]), context(1))
        return answer.responses[0].partitions[0].error_code

    assert await move([NODE]) == ErrorCode.NONE
    for replicas in ([NODE, OTHER_NODE], [], [99], [NODE, NODE]):
        assert await move(replicas) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await move(None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert await move([NODE], 5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_running_move_is_listed() -> None:
    kit = ImageKit()
    topic = kit.put_topic("t", 2)
    kit.image[MOVES].put(
        MoveRow(topic.topic_id, 1, NODE, OTHER_NODE, 0, 10_000, MoveCause.REQUEST, "because", "")
    )
    kit.image[PARTITIONS].put(PartitionRow(topic.topic_id, 1, NODE, 3, (OTHER_NODE,)))
    kit.set_meta_stream(topic, 1, is_open=True, at=NODE, epoch=3)
    handler = PartitionReassignmentsHandler(kit.topics, cast("MoveOperations", None))

    async def listed(
        *wanted: ListPartitionReassignmentsTopics, everything: bool = False
    ) -> dict[str, list[tuple[int, list[int], list[int], list[int]]]]:
        request = ListPartitionReassignmentsRequest(10_000, None if everything else wanted)
        answer = await handler.ongoing(request, context(0))
        return {
            each.name: [
                (
                    one.partition_index,
                    list(one.replicas),
                    list(one.adding_replicas),
                    list(one.removing_replicas),
                )
                for one in each.partitions
            ]
            for each in answer.topics
        }

    shown = {"t": [(1, [OTHER_NODE, NODE], [OTHER_NODE], [NODE])]}
    assert await listed(everything=True) == shown
    assert await listed(ListPartitionReassignmentsTopics("t", [0, 1])) == shown
    assert await listed(ListPartitionReassignmentsTopics("t", [0])) == {}
    assert await listed(ListPartitionReassignmentsTopics("none", [0])) == {}
    # Clients still see the former leader, and no target.
    answer = at_once(metadata_handler(kit).describe(MetadataRequest(topics=None), VERSION))
    one = answer.topics[0].partitions[1]
    assert (one.leader_id, one.leader_epoch, one.replica_nodes, one.isr_nodes) == (NODE, 3, [NODE], [NODE])
    asked = ElectLeadersRequest(0, [TopicPartitions("t", [1])])
    (result,) = (await elect_leaders(kit.topics, asked, context(2))).replica_election_results
    assert result.partition_result[0].error_code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


async def test_a_fenced_leader_is_not_available() -> None:
    kit = ImageKit()
    kit.put_topic("t", leader=OTHER_NODE)
    kit.put_broker(OTHER_NODE, fenced=True)
    answer = at_once(metadata_handler(kit).describe(MetadataRequest(topics=None), VERSION))
    (one,) = answer.topics[0].partitions
    assert (one.error_code, one.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (one.replica_nodes, one.offline_replicas) == ([OTHER_NODE], [OTHER_NODE])
    assert [broker.node_id for broker in answer.brokers] == [NODE]


async def test_fenced_brokers_are_listed_on_request() -> None:
    kit = ImageKit()
    kit.put_broker(OTHER_NODE, fenced=True)
    alive = await describe_cluster(kit.topics, NODE, DescribeClusterRequest(), context(2))
    assert [(broker.broker_id, broker.is_fenced) for broker in alive.brokers] == [(NODE, False)]
    everyone = await describe_cluster(
        kit.topics, NODE, DescribeClusterRequest(include_fenced_brokers=True), context(2)
    )
    assert [(broker.broker_id, broker.is_fenced) for broker in everyone.brokers] == [
        (NODE, False),
        (OTHER_NODE, True),
    ]
    for kind, code in (
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ):
        refused = await describe_cluster(
            kit.topics, NODE, DescribeClusterRequest(endpoint_type=kind), context(2)
        )
        assert (refused.error_code, refused.controller_id, list(refused.brokers)) == (code, -1, [])


async def test_topics_and_brokers_are_config_resources() -> None:
    kit = ImageKit()
    kit.put_topic("t")

    async def listed(*kinds: int, version: int = 1) -> list[tuple[str, int]]:
        answer = await list_config_resources(kit.topics, ListConfigResourcesRequest(kinds), context(version))
        return [(each.resource_name, each.resource_type) for each in answer.config_resources]

    assert await listed() == [("7", 4), ("8", 4), ("t", 2)]
    assert await listed(2) == [("t", 2)]
    assert await listed(16, 32) == []
    assert await listed(version=0) == []
    answer = await list_config_resources(kit.topics, ListConfigResourcesRequest((99,)), context(1))
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_there_is_one_log_directory() -> None:
    kit = ImageKit()
    kit.put_topic("t")
    moved = [
        AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(name, [0])])
        for path, name in ((LOG_DIR, "t"), ("/elsewhere", "u"), (LOG_DIR, "none"))
    ]
    answer = await alter_replica_log_dirs(kit.topics, AlterReplicaLogDirsRequest(moved), context(2))
    assert {each.topic_name: each.partitions[0].error_code for each in answer.results} == {
        "t": ErrorCode.NONE,
        "u": ErrorCode.LOG_DIR_NOT_FOUND,
        "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("api", ["elect", "move"])
async def test_a_long_name_is_not_repeated_for_every_partition(api: str) -> None:
    """A request of 4 MiB with a name of 32 KB and a million partitions had an answer of 32 GB."""
    kit, name, partitions = ImageKit(), "x" * 32_000, 1_000

    async def answer_of(count: int) -> bytes:
        if api == "elect":
            election = ElectLeadersRequest(0, [TopicPartitions(name, list(range(count)))])
            return encode(await elect_leaders(kit.topics, election, context(2)), 2)
        rows = [ReassignablePartition(index, None) for index in range(count)]
        moves = PartitionReassignmentsHandler(kit.topics, cast("MoveOperations", None))
        wanted = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name, rows)])
        return encode(await moves.alter(wanted, context(1)), 1)

    assert len(await answer_of(partitions)) < len(name) + 600 * partitions
    with pytest.raises(KafkaWireError, match="at most 100000"):
        await answer_of(ROWS_MAX + 1)


async def test_partitions_named_beyond_the_bound_end_the_connection() -> None:
    kit = ImageKit()
    kit.put_topic("t", 1)
    indexes = [0] * (ROWS_MAX + 1)
    moved = AlterReplicaLogDir(LOG_DIR, [AlterReplicaLogDirTopic("t", indexes)])
    with pytest.raises(KafkaWireError, match="at most 100000"):
        await alter_replica_log_dirs(kit.topics, AlterReplicaLogDirsRequest([moved]), context(2))
    asked = DescribeLogDirsRequest([DescribableLogDirTopic("t", indexes)])
    with pytest.raises(KafkaWireError, match="at most 100000"):
        await describe_log_dirs(cast("PartitionManager", None), asked, context(2))
    listed = ListPartitionReassignmentsRequest(topics=[ListPartitionReassignmentsTopics("t", indexes)])
    moves = PartitionReassignmentsHandler(kit.topics, cast("MoveOperations", None))
    with pytest.raises(KafkaWireError, match="at most 100000"):
        await moves.ongoing(listed, context(0))
