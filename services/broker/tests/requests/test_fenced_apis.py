"""Every API of a fenced broker answers with an error, or closes the connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ponor_broker.requests.connection import CloseConnectionError, ConnectionContext
from ponor_broker.requests.dispatch import Dispatcher
from ponor_broker.requests.running_requests import RequestUnderWay
from ponor_kafka.api import ApiKey
from ponor_kafka.codec import decode_response, encode, request_class
from ponor_kafka.errors import ErrorCode
from ponor_kafka.headers import decode_response_header, encode_request_header
from ponor_kafka.message import Message, Struct
from ponor_kafka.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    share_fetch,
    write_share_group_state,
)
from ponor_kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ponor_kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ponor_kafka.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from ponor_kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ponor_kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ponor_kafka.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from ponor_kafka.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ponor_kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from ponor_kafka.messages.describe_transactions import DescribeTransactionsRequest
from ponor_kafka.messages.end_txn import EndTxnRequest
from ponor_kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest
from ponor_kafka.messages.join_group import JoinGroupRequest
from ponor_kafka.messages.leave_group import LeaveGroupRequest
from ponor_kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ponor_kafka.messages.list_transactions import ListTransactionsRequest
from ponor_kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ponor_kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ponor_kafka.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ponor_kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ponor_kafka.messages.share_acknowledge import ShareAcknowledgeRequest
from ponor_kafka.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from ponor_kafka.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from ponor_kafka.messages.sync_group import SyncGroupRequest
from ponor_kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ponor_kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

from tools.advertised_apis import unstarted_services

GROUP = "g"
LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
COORDINATOR = ErrorCode.NOT_COORDINATOR


def _with_groups(version: int) -> Message:
    if version >= 8:
        topics = [OffsetFetchRequestTopics("t" if version < 10 else "", bytes(16), [0])]
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(GROUP, topics=topics)])
    return OffsetFetchRequest(GROUP, [OffsetFetchRequestTopic("t", [0])])


def _refused_request(key: ApiKey, version: int) -> tuple[Message, ErrorCode]:
    """A request, and the error code of all its rows from a fenced broker."""
    match key:
        case ApiKey.PRODUCE:
            name, topic_id = ("t", bytes(16)) if version < 13 else ("", b"i" * 16)
            data = PartitionProduceData(0, bytes(61))
            return ProduceRequest(None, 1, 1_000, [TopicProduceData(name, topic_id, [data])]), LEADER
        case ApiKey.FETCH:
            name, topic_id = ("t", bytes(16)) if version < 13 else ("", b"i" * 16)
            wanted = [FetchTopic(name, topic_id, [FetchPartition(0, partition_max_bytes=100)])]
            return FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=wanted), LEADER
        case ApiKey.LIST_OFFSETS:
            return ListOffsetsRequest(
                -1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])]
            ), LEADER
        case ApiKey.OFFSET_FOR_LEADER_EPOCH:
            return (
                OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0)])]),
                LEADER,
            )
        case ApiKey.DELETE_RECORDS:
            return DeleteRecordsRequest(
                [DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 0)])], 100
            ), LEADER
        case ApiKey.WRITE_TXN_MARKERS:
            marker = WritableTxnMarker(1, 0, True, [WritableTxnMarkerTopic("t", [0])])
            return WriteTxnMarkersRequest([marker]), LEADER
        case ApiKey.DESCRIBE_PRODUCERS:
            return DescribeProducersRequest([TopicRequest("t", [0])]), LEADER
        case ApiKey.FIND_COORDINATOR:
            single = FindCoordinatorRequest(GROUP)
            many = FindCoordinatorRequest(coordinator_keys=[GROUP])
            return many if version >= 4 else single, ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ApiKey.JOIN_GROUP:
            return JoinGroupRequest(GROUP, 10_000, protocol_type="consumer"), COORDINATOR
        case ApiKey.SYNC_GROUP:
            return SyncGroupRequest(GROUP, 1, "m", protocol_type="consumer", protocol_name="range") if (
                version >= 5
            ) else SyncGroupRequest(GROUP, 1, "m"), COORDINATOR
        case ApiKey.LEAVE_GROUP:
            return LeaveGroupRequest(GROUP, "m" if version < 3 else ""), COORDINATOR
        case ApiKey.OFFSET_COMMIT:
            name, topic_id = ("t", bytes(16)) if version < 10 else ("", b"i" * 16)
            topic = OffsetCommitRequestTopic(name, topic_id, [OffsetCommitRequestPartition(0, 1)])
            return OffsetCommitRequest(GROUP, topics=[topic]), COORDINATOR
        case ApiKey.OFFSET_FETCH:
            return _with_groups(version), COORDINATOR
        case ApiKey.LIST_GROUPS:
            return request_class(key)(), ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ApiKey.DESCRIBE_GROUPS:
            return request_class(key)([GROUP]), COORDINATOR  # type: ignore[call-arg]
        case ApiKey.DELETE_GROUPS:
            return request_class(key)([GROUP]), COORDINATOR  # type: ignore[call-arg]
        case ApiKey.HEARTBEAT | ApiKey.OFFSET_DELETE:
            return request_class(key)(GROUP), COORDINATOR  # type: ignore[call-arg]
        case _:
            return _refused_by_coordinators(key, version)


def _refused_by_coordinators(key: ApiKey, version: int) -> tuple[Message, ErrorCode]:
    if key in SHARE_STATE:
        return _share_state_request(key), COORDINATOR
    if key is ApiKey.SHARE_FETCH:
        partition = share_fetch.FetchTopic(b"i" * 16, [share_fetch.FetchPartition(0)])
        return share_fetch.ShareFetchRequest(GROUP, "m", max_records=1, topics=[partition]), LEADER
    if key is ApiKey.SHARE_ACKNOWLEDGE:
        return ShareAcknowledgeRequest(GROUP, "m", 1), ErrorCode.SHARE_SESSION_NOT_FOUND
    match key:
        case (
            ApiKey.SHARE_GROUP_HEARTBEAT
            | ApiKey.STREAMS_GROUP_HEARTBEAT
            | ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
            | ApiKey.ALTER_SHARE_GROUP_OFFSETS
            | ApiKey.DELETE_SHARE_GROUP_OFFSETS
        ):
            return _share_or_streams_request(key), COORDINATOR
        case ApiKey.CONSUMER_GROUP_HEARTBEAT:
            joining = ConsumerGroupHeartbeatRequest(
                GROUP, "m", 0, rebalance_timeout_ms=10_000, subscribed_topic_names=["t"], topic_partitions=[]
            )
            return joining, COORDINATOR
        case ApiKey.CONSUMER_GROUP_DESCRIBE | ApiKey.SHARE_GROUP_DESCRIBE | ApiKey.STREAMS_GROUP_DESCRIBE:
            return request_class(key)([GROUP]), COORDINATOR  # type: ignore[call-arg]
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            topics = [AddPartitionsToTxnTopic("__consumer_offsets" if version >= 4 else "t", [0])]
            if version < 4:
                return AddPartitionsToTxnRequest((), "x", 1, 0, topics), COORDINATOR
            row = AddPartitionsToTxnTransaction("x", 1, 0, topics=topics)
            return AddPartitionsToTxnRequest([row]), COORDINATOR
        case ApiKey.ADD_OFFSETS_TO_TXN:
            return AddOffsetsToTxnRequest("x", 1, 0, GROUP), COORDINATOR
        case ApiKey.END_TXN:
            return EndTxnRequest("x", 1, 0, True), COORDINATOR
        case ApiKey.TXN_OFFSET_COMMIT:
            topic = TxnOffsetCommitRequestTopic("t", partitions=[TxnOffsetCommitRequestPartition(0, 1)])
            return TxnOffsetCommitRequest("x", GROUP, 1, 0, topics=[topic]), COORDINATOR
        case ApiKey.DESCRIBE_TRANSACTIONS:
            return DescribeTransactionsRequest(["x"]), COORDINATOR
        case _:
            assert key is ApiKey.LIST_TRANSACTIONS
            return ListTransactionsRequest(), ErrorCode.COORDINATOR_NOT_AVAILABLE


def _share_or_streams_request(key: ApiKey) -> Message:
    """A request of a member or a tool to the coordinator of a share or streams group."""
    match key:
        case ApiKey.SHARE_GROUP_HEARTBEAT:
            return ShareGroupHeartbeatRequest(GROUP, "m", 0, subscribed_topic_names=["t"])
        case ApiKey.STREAMS_GROUP_HEARTBEAT:
            return StreamsGroupHeartbeatRequest(GROUP, "m", 1, 0)
        case ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS:
            return DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(GROUP)])
        case ApiKey.ALTER_SHARE_GROUP_OFFSETS:
            return AlterShareGroupOffsetsRequest(GROUP)
        case _:
            assert key is ApiKey.DELETE_SHARE_GROUP_OFFSETS
            return DeleteShareGroupOffsetsRequest(GROUP)


def _share_state_request(key: ApiKey) -> Message:
    """A request of a leader or a group coordinator to a share coordinator."""
    topics: dict[ApiKey, list[Any]] = {
        ApiKey.INITIALIZE_SHARE_GROUP_STATE: [
            initialize_share_group_state.InitializeStateData(
                b"i" * 16, [initialize_share_group_state.PartitionData(0)]
            )
        ],
        ApiKey.READ_SHARE_GROUP_STATE: [
            read_share_group_state.ReadStateData(b"i" * 16, [read_share_group_state.PartitionData(0)])
        ],
        ApiKey.WRITE_SHARE_GROUP_STATE: [
            write_share_group_state.WriteStateData(b"i" * 16, [write_share_group_state.PartitionData(0)])
        ],
        ApiKey.DELETE_SHARE_GROUP_STATE: [
            delete_share_group_state.DeleteStateData(b"i" * 16, [delete_share_group_state.PartitionData(0)])
        ],
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: [
            read_share_group_state_summary.ReadStateSummaryData(
                b"i" * 16, [read_share_group_state_summary.PartitionData(0)]
            )
        ],
    }
    return request_class(key)(GROUP, topics[key])  # type: ignore[call-arg]


SHARE_STATE = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
}
REFUSED = {
    *SHARE_STATE,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DELETE_RECORDS,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_DELETE,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.SHARE_FETCH,
    ApiKey.SHARE_ACKNOWLEDGE,
    ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_DESCRIBE,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    ApiKey.STREAMS_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_DESCRIBE,
}
CLOSED = {
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.METADATA,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.ELECT_LEADERS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.UPDATE_FEATURES,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
}


def _fenced_dispatcher() -> Dispatcher:
    """Return the dispatcher of a broker without contact to a controller."""
    services = unstarted_services()
    services.serving.limit(9_000)
    return services.dispatcher


async def _ask(dispatcher: Dispatcher, key: ApiKey, version: int, body: bytes) -> Message:
    frame = bytearray(encode_request_header(key, version, 7, "client") + body)
    answer: Any = dispatcher.dispatch(frame, ConnectionContext("peer:1"), 0)
    if isinstance(answer, RequestUnderWay):
        answer = await asyncio.wait_for(answer._work, 10)
    assert answer is not None
    whole = b"".join(answer)[4:]
    _, position = decode_response_header(key, version, whole)
    return decode_response(key, version, whole, position)[0]


def _codes(part: object) -> list[int]:
    """The error code of every innermost row of an answer that has one."""
    if isinstance(part, list | tuple):
        return [code for one in part for code in _codes(one)]
    if not isinstance(part, Struct):
        return []
    inside = [code for name in type(part).__slots__ for code in _codes(getattr(part, name))]
    names = [name for name in ("error_code", "partition_error_code") if name in type(part).__slots__]
    return inside or [getattr(part, name) for name in names]


async def test_every_api_of_a_broker_has_an_entry_here() -> None:
    handled = {ApiKey(row.key) for row in _fenced_dispatcher().advertised}
    assert handled == REFUSED | CLOSED | {ApiKey.API_VERSIONS}, (
        "say what a fenced broker does with requests of a new API: see WhenFenced"
    )


@pytest.mark.parametrize("key", sorted(REFUSED), ids=lambda key: key.name)
async def test_a_fenced_broker_answers_with_errors(key: ApiKey) -> None:
    dispatcher = _fenced_dispatcher()
    route = dispatcher._routes[key]
    for version in range(route.version_min, route.version_max + 1):
        request, code = _refused_request(key, version)
        answer = await _ask(dispatcher, key, version, encode(request, version))
        assert set(_codes(answer)) == {code}, (version, answer)


@pytest.mark.parametrize("key", sorted(CLOSED), ids=lambda key: key.name)
async def test_a_fenced_broker_closes_the_connection(key: ApiKey) -> None:
    dispatcher = _fenced_dispatcher()
    route = dispatcher._routes[key]
    for version in range(route.version_min, route.version_max + 1):
        with pytest.raises(CloseConnectionError, match="must not answer: age of the metadata: unknown"):
            await _ask(dispatcher, key, version, b"")


async def test_a_fenced_broker_answers_api_versions_without_cluster_features() -> None:
    dispatcher = _fenced_dispatcher()
    request: Any = request_class(ApiKey.API_VERSIONS)()
    request.client_software_name = request.client_software_version = "a"
    answer: Any = await _ask(dispatcher, ApiKey.API_VERSIONS, 4, encode(request, 4))
    assert answer.error_code == ErrorCode.NONE
    assert len(answer.api_keys) == len(dispatcher.advertised)
    assert (answer.finalized_features_epoch, answer.finalized_features) == (-1, ())
