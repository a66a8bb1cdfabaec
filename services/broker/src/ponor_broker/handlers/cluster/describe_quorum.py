"""DescribeQuorum: voters, leader and lag of the controllers (KIP-595, KIP-836, KIP-853).

The controllers' leader answers, because only it has the progress of the others. Kafka's metadata log is a
partition of a topic; the answer uses that topic's name. Learners are shown as observers. Brokers, which are
observers in Kafka, do not belong to the quorum here.
"""

from __future__ import annotations

from typing import Final

from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import ZERO_UUID
from ponor_kafka.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from ponor_metadata.client.leader_calls import NoControllerError
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_runtime.clock import Clock
from ponor_runtime.host_port import split_host_port

from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.request_rows import check_rows

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_PARTITION: Final = 0
LISTENER_NAME: Final = "CONTROLLER"
FIRST_VERSION_WITH_DIRECTORIES: Final = 2
"""KIP-853: voters are identified by node and directory, and have endpoints."""


class DescribeQuorumHandler:
    """Translates between the wire and the controllers' quorum service."""

    def __init__(self, quorum: QuorumClient, clock: Clock, *, timeout_ms: int) -> None:
        self._quorum = quorum
        self._clock = clock
        self._timeout_ms = timeout_ms

    async def handle(self, request: DescribeQuorumRequest, context: RequestContext) -> DescribeQuorumResponse:
        """Answer for Kafka's metadata partition; any other partition is unknown."""
        check_rows(sum(len(topic.partitions) for topic in request.topics))
        asked = [
            (topic.topic_name, [row.partition_index for row in topic.partitions]) for topic in request.topics
        ]
        if asked != [(METADATA_TOPIC, [METADATA_PARTITION])]:
            return _of_unknown(asked)
        question = wire.QuorumRequest(describe=wire.DescribeQuorum(leader_only=True))
        try:
            answer = await self._quorum.ask(question, timeout_s=self._timeout_ms / 1000)
        except NoControllerError as error:
            return DescribeQuorumResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=str(error))
        directories = context.api_version >= FIRST_VERSION_WITH_DIRECTORIES
        return self._translate(answer.description, directories=directories)

    def _translate(self, answer: wire.QuorumDescription, *, directories: bool) -> DescribeQuorumResponse:
        voters = [member for member in answer.members if member.voter]
        learners = [member for member in answer.members if not member.voter]
        partition = DescribeQuorumResponsePartitionData(
            partition_index=METADATA_PARTITION,
            leader_id=answer.leader_node_id,
            leader_epoch=answer.term,
            high_watermark=answer.commit_index + 1,
            current_voters=[self._replica(member, directories) for member in voters],
            observers=[self._replica(member, directories) for member in learners],
        )
        return DescribeQuorumResponse(
            topics=[DescribeQuorumResponseTopicData(METADATA_TOPIC, [partition])],
            nodes=[_node(member) for member in voters] if directories else [],
        )

    def _replica(self, member: wire.MemberState, directories: bool) -> ReplicaState:
        now_ms = self._clock.wall_ms()
        return ReplicaState(
            replica_id=member.node_id,
            replica_directory_id=member.directory_id if directories else ZERO_UUID,
            log_end_offset=member.match_index + 1,
            last_fetch_timestamp=now_ms - member.silent_ms if member.silent_ms >= 0 else -1,
            last_caught_up_timestamp=now_ms - member.behind_ms if member.behind_ms >= 0 else -1,
        )


def _node(member: wire.MemberState) -> Node:
    host, port = split_host_port(member.service_address)
    return Node(member.node_id, [Listener(LISTENER_NAME, host, port)])


def _of_unknown(asked: list[tuple[str, list[int]]]) -> DescribeQuorumResponse:
    topics = [
        DescribeQuorumResponseTopicData(
            name,
            [
                DescribeQuorumResponsePartitionData(
                    partition_index=index,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message=f"only partition {METADATA_PARTITION} of {METADATA_TOPIC} has a quorum;"
                    " request only that one",
                )
                for index in partitions
            ],
        )
        for name, partitions in asked
    ]
    return DescribeQuorumResponse(topics=topics)
