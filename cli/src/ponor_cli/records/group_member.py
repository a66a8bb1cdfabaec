"""A member of a consumer group for one topic: joins, shares the partitions, keeps alive, commits, leaves (the classic protocol).

What lives here: the group's protocol over one connection, without threads: whoever polls calls `keep_alive` often enough. Reading is
`topic_reader`'s.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from ponor_kafka.codec import decode_versioned, encode_versioned
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from ponor_kafka.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from ponor_kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ponor_kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ponor_kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ponor_kafka.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ponor_kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ponor_kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ponor_kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from ponor_runtime.host_port import join_host_port

from ponor_cli.clients.kafka_client import KafkaClient, error_of
from ponor_cli.errors import CommandError
from ponor_cli.records.leader_connections import RETRIES_MAX, RETRY_S, LeaderConnections

SESSION_TIMEOUT_MS: Final = 30_000
REBALANCE_TIMEOUT_MS: Final = 60_000
HEARTBEAT_S: Final = 3.0
STRATEGY: Final = "range"
_PROTOCOL: Final = "consumer"
_NAMES_VERSION_MAX: Final = 9
"""From 10 on offset requests name topics by id."""
_SUBSCRIPTION_VERSION: Final = 1
_REJOIN: Final = frozenset(
    {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID}
)


class GroupMember:
    """One member.

    Raises (all calls): `CommandError` when the group or its coordinator refuses.
    """

    def __init__(self, leaders: LeaderConnections, group: str) -> None:
        self._leaders = leaders
        self._group = group
        self._member = ""
        self._generation = -1
        self._heard_s = 0.0
        self._coordinator = self._find()

    def join(self) -> list[int]:
        """Become a member, or one of a new generation; the partitions that are ours now."""
        tries = 0
        while True:
            joined = self._join_once()
            code = joined.error_code
            if code == ErrorCode.NONE:
                synced = self._sync(joined)
                code = synced.error_code
                if code == ErrorCode.NONE:
                    self._heard_s = time.monotonic()
                    return self._ours(synced.assignment)
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member = ""
            tries += 1
            if code not in _REJOIN and code != ErrorCode.MEMBER_ID_REQUIRED:
                self._wait_or_raise(code, tries)
            elif tries >= RETRIES_MAX:
                raise CommandError(f"group {self._group} does not settle; are members coming and going?")

    def keep_alive(self) -> bool:
        """Heartbeat when it is due; False when the group wants everybody to join again."""
        if time.monotonic() - self._heard_s < HEARTBEAT_S:
            return True
        request = HeartbeatRequest(
            group_id=self._group, generation_id=self._generation, member_id=self._member
        )
        code = self._coordinator.call(request, HeartbeatResponse).error_code
        self._heard_s = time.monotonic()
        if code == ErrorCode.NONE:
            return True
        if code in _REJOIN:
            return False
        self._wait_or_raise(code, 1)
        return True

    def committed(self, partitions: list[int]) -> dict[int, int]:
        """The group's offsets, where it has some."""
        topic = OffsetFetchRequestTopics(name=self._leaders.topic, partition_indexes=partitions)
        group = OffsetFetchRequestGroup(group_id=self._group, topics=[topic])
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        tries = 0
        while True:
            answer = self._coordinator.call(
                request, OffsetFetchResponse, version_max=_NAMES_VERSION_MAX
            ).groups[0]
            if answer.error_code == ErrorCode.NONE:
                rows = [row for each in answer.topics for row in each.partitions]
                return {
                    row.partition_index: row.committed_offset for row in rows if row.committed_offset >= 0
                }
            tries += 1
            self._wait_or_raise(answer.error_code, tries)

    def commit(self, positions: Mapping[int, int]) -> None:
        """Tell the group how far this member has come. A group that rebalances takes no commit: its next owner reads again."""
        if not positions:
            return
        rows = [
            OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
            for partition, offset in positions.items()
        ]
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member,
            topics=[OffsetCommitRequestTopic(name=self._leaders.topic, partitions=rows)],
        )
        tries = 0
        while True:
            response = self._coordinator.call(request, OffsetCommitResponse, version_max=_NAMES_VERSION_MAX)
            codes = {row.error_code for topic in response.topics for row in topic.partitions} - {0}
            if not codes or codes <= _REJOIN:
                return
            tries += 1
            self._wait_or_raise(min(codes), tries)

    def leave(self) -> None:
        """Say goodbye, so that others get the partitions at once."""
        member = MemberIdentity(member_id=self._member)
        request = LeaveGroupRequest(group_id=self._group, members=[member])
        self._coordinator.call(request, LeaveGroupResponse)

    def _find(self) -> KafkaClient:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self._group])
        tries = 0
        while True:
            response = self._leaders.bootstrap.call(request, FindCoordinatorResponse)
            found = response.coordinators[0]
            if found.error_code == ErrorCode.NONE:
                # A connection of its own: a join may wait for other members.
                return KafkaClient(join_host_port(found.host, found.port))
            tries += 1
            self._wait_or_raise(found.error_code, tries)

    def _join_once(self) -> JoinGroupResponse:
        subscription = ConsumerProtocolSubscription(topics=[self._leaders.topic])
        protocol = JoinGroupRequestProtocol(
            name=STRATEGY, metadata=encode_versioned(subscription, _SUBSCRIPTION_VERSION)
        )
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member,
            protocol_type=_PROTOCOL,
            protocols=[protocol],
        )
        response = self._coordinator.call(request, JoinGroupResponse)
        if response.member_id:
            self._member = response.member_id
        self._generation = response.generation_id
        return response

    def _sync(self, joined: JoinGroupResponse) -> SyncGroupResponse:
        assignments = self._assign(joined) if joined.leader == self._member else []
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._member,
            protocol_type=_PROTOCOL,
            protocol_name=STRATEGY,
            assignments=assignments,
        )
        return self._coordinator.call(request, SyncGroupResponse)

    def _assign(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Kafka's range assignor for one topic: contiguous shares, the first members get one more. Members of other topics get none."""
        members = sorted(member.member_id for member in joined.members if self._wants(member.metadata))
        partitions = self._leaders.partitions
        each, more = divmod(len(partitions), max(len(members), 1))
        shares: dict[str, list[int]] = {member.member_id: [] for member in joined.members}
        first = 0
        for number, member in enumerate(members):
            size = each + (1 if number < more else 0)
            shares[member] = partitions[first : first + size]
            first += size
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=self._encode(share))
            for member, share in shares.items()
        ]

    def _wants(self, metadata: bytes) -> bool:
        return self._leaders.topic in decode_versioned(ConsumerProtocolSubscription, metadata)[0].topics

    def _encode(self, share: list[int]) -> bytes:
        topics = [TopicPartition(topic=self._leaders.topic, partitions=share)] if share else []
        return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=topics), _SUBSCRIPTION_VERSION)

    def _ours(self, assignment: bytes) -> list[int]:
        if not assignment:
            return []
        decoded = decode_versioned(ConsumerProtocolAssignment, assignment)[0]
        return sorted(
            partition
            for topic in decoded.assigned_partitions
            if topic.topic == self._leaders.topic
            for partition in topic.partitions
        )

    def _wait_or_raise(self, code: int, tries: int) -> None:
        error = error_of(code)
        if not error.retriable or tries >= RETRIES_MAX:
            raise CommandError(f"group {self._group}: {error.name} ({error.meaning})")
        time.sleep(RETRY_S)
        if error is ErrorCode.NOT_COORDINATOR:
            self._coordinator = self._find()
