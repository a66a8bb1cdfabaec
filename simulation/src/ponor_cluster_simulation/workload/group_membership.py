"""Memberships of a consumer group: how a member joins, continues and leaves with each of the two protocols.

A membership tells its owner before it gives up partitions, so that their offsets can be committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

from ponor_kafka.codec import decode_versioned, encode_versioned
from ponor_kafka.errors import ErrorCode
from ponor_kafka.message import Message
from ponor_kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from ponor_kafka.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from ponor_kafka.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from ponor_kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ponor_kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ponor_kafka.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ponor_kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from ponor_runtime.network import ConnectionClosedError
from ponor_runtime.runtime import Runtime

from ponor_cluster_simulation.workload.connections import GROUP, Connections, NotSentError
from ponor_cluster_simulation.workload.leaders import Leaders
from ponor_cluster_simulation.workload.producer_session import RETRIABLE
from ponor_cluster_simulation.workload.shared_group import (
    ANSWER_S_MAX,
    JOIN_S_MAX,
    REBALANCE_TIMEOUT_MS,
    SAFE_S,
    SESSION_TIMEOUT_MS,
    SharedGroup,
)

M = TypeVar("M", bound=Message)
EMBEDDED_VERSION: Final = 3
PROTOCOL_TYPE: Final = "consumer"
ASSIGNOR: Final = "range"
LEAVING, LEAVING_FOR_SHORT = -1, -2
LATE_STEPS_MAX: Final = 5
FENCED: Final = frozenset(
    {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}
)
"""The group does not know the member, or not with this epoch: it gives up everything and joins."""
REJOIN: Final = frozenset(
    {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
"""A classic member joins again."""

BeforeRevocation: TypeAlias = Callable[[Runtime, "Membership", Iterable[int]], Awaitable[None]]


class Membership(ABC):
    """One membership of a client.

    Attributes:
        member: name in the history; each join has its own.
        epoch: member epoch or generation.
        used: partitions that the member uses.
        positions: the next offset to read of each partition whose committed offset is known.
        committed: offsets that the coordinator returned or acknowledged.
    """

    def __init__(
        self,
        name: str,
        instance_id: str | None,
        connections: Connections,
        leaders: Leaders,
        shared: SharedGroup,
        before_revocation: BeforeRevocation,
    ) -> None:
        self._name = name
        self.instance_id = instance_id
        self._connections = connections
        self._leaders = leaders
        self._shared = shared
        self._before_revocation = before_revocation
        self._joins = 0
        self.member = f"{name}.0"
        self.member_id = ""
        self.epoch = 0
        self.used: frozenset[int] = frozenset()
        self.positions: dict[int, int] = {}
        self.committed: dict[int, int] = {}

    @property
    def uncommitted(self) -> dict[int, int]:
        """Positions that differ from the committed offsets."""
        return {each: at for each, at in self.positions.items() if self.committed.get(each) != at}

    @abstractmethod
    async def step(self, runtime: Runtime) -> None:
        """Send the next request of the protocol."""

    @abstractmethod
    async def leave(self, runtime: Runtime, *, for_short: bool = False) -> bool:
        """Leave the group; return whether the coordinator answered."""

    @property
    @abstractmethod
    def is_joined(self) -> bool:
        """Whether the member has joined, and uses what it was assigned."""

    @abstractmethod
    def refused(self, code: ErrorCode) -> None:
        """Handle the refusal of a commit because of the member or its epoch."""

    def drop(self, runtime: Runtime) -> None:
        """Use no partition any more."""
        self._give_up(self.used, now_of(runtime))

    def _give_up(self, revoked: Iterable[int], now_s: float) -> None:
        self._shared.history.gave_up(self.member, revoked, now_s)
        for partition in revoked:
            self.positions.pop(partition, None)
            self.committed.pop(partition, None)
        self.used = self.used.difference(revoked)

    def _began(self) -> None:
        self._joins += 1
        self.member = f"{self._name}.{self._joins}"

    async def _use(self, runtime: Runtime, wanted: frozenset[int], until_s: float) -> None:
        """Revoke what is not wanted, and begin to use the rest."""
        revoked = self.used - wanted
        if revoked:
            await self._before_revocation(runtime, self, revoked)
        now_s, added = now_of(runtime), wanted - self.used
        self._give_up(revoked, now_s)
        self._shared.history.got(self.member, added, now_s, until_s)
        self._shared.states["partitions assigned"] += len(added)
        self._shared.states["partitions revoked"] += len(revoked)
        self.used = wanted

    async def ask(
        self,
        runtime: Runtime,
        request: Message,
        version: int,
        expected: type[M],
        *,
        timeout_s: float = ANSWER_S_MAX,
    ) -> M | None:
        """Send a request to the coordinator; None if it was not answered."""
        group = self._shared.group
        try:
            return await self._connections.ask_coordinator(
                runtime, GROUP, group, request, version, expected, timeout_s=timeout_s
            )
        except (ConnectionClosedError, NotSentError):
            self._connections.forget_coordinators()
            return None

    def retry(self, code: ErrorCode) -> None:
        """Handle a temporary error: look up the coordinator again."""
        assert code in RETRIABLE, f"{self._name}: {code.name}"
        self._connections.forget_coordinators()


def now_of(runtime: Runtime) -> float:
    """Seconds of the clock that all clients of a run share."""
    return runtime.clock.monotonic_ns() / 1e9


class ConsumerMembership(Membership):
    """A member that sends ConsumerGroupHeartbeat (KIP-848). It sometimes revokes late."""

    def __init__(
        self,
        name: str,
        instance_id: str | None,
        connections: Connections,
        leaders: Leaders,
        shared: SharedGroup,
        before_revocation: BeforeRevocation,
    ) -> None:
        super().__init__(name, instance_id, connections, leaders, shared, before_revocation)
        self._wanted: frozenset[int] | None = None
        self._reported: frozenset[int] | None = None
        self._is_full = True
        """Whether the next heartbeat has all fields, because the one before was not answered."""
        self._delay = 0
        """Heartbeats that the member still sends before it revokes."""
        self._safe_until_s = 0.0

    @property
    def is_joined(self) -> bool:
        return self.epoch > 0 and self._wanted is None and self._reported == self.used

    async def step(self, runtime: Runtime) -> None:
        if self._leaders.topic_id is None:
            return
        if not self.member_id:
            self.member_id = str(runtime.randomness.uuid())
        self._delay -= 1
        if self._delay < 0:
            await self._apply(runtime)
        if self.epoch == 0:
            self._is_full = True
        sent_s, sent = now_of(runtime), self.used
        request = self._request()
        is_reported = request.topic_partitions is not None
        answer = await self.ask(runtime, request, 1, ConsumerGroupHeartbeatResponse)
        if answer is None:
            self._is_full = True
            if self.epoch == 0:  # this join may arrive late, when the member has partitions
                self.member_id = ""
            return
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            self._is_full = False
            self._reported = sent if is_reported else self._reported
            self._take(runtime, answer, sent_s)
            if self._wanted is not None and self.used <= self._wanted:
                await self._apply(runtime)
        else:
            self._refused(runtime, code)

    async def _apply(self, runtime: Runtime) -> None:
        """Revoke and begin to use partitions, as the newest assignment requires."""
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            await self._use(runtime, wanted, self._safe_until_s)

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            self._shared.group, self.member_id, self.epoch, instance_id=self.instance_id
        )
        if self._is_full:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.subscribed_topic_names = [self._shared.topic]
        if self._is_full or self._reported != self.used:
            assert self._leaders.topic_id is not None
            row = ConsumerGroupHeartbeatRequestTopicPartitions(self._leaders.topic_id, sorted(self.used))
            request.topic_partitions = [row] if self.used else []
        return request

    def _take(self, runtime: Runtime, answer: ConsumerGroupHeartbeatResponse, sent_s: float) -> None:
        if self.epoch == 0:
            self._began()
            self._shared.states["joins with heartbeats"] += 1
        assert answer.member_epoch >= self.epoch, f"{self._name}: the epoch fell to {answer.member_epoch}"
        self.epoch = answer.member_epoch
        self._shared.states["heartbeats answered"] += 1
        self._safe_until_s = sent_s + SAFE_S
        self._shared.history.confirmed(self.member, now_of(runtime), self._safe_until_s)
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            assert all(row.topic_id == self._leaders.topic_id for row in rows), (
                "a topic without a subscription"
            )
            self._wanted = frozenset(index for row in rows for index in row.partitions)
            self._delay = runtime.randomness.below(2) * runtime.randomness.below(LATE_STEPS_MAX + 1)

    def _refused(self, runtime: Runtime, code: ErrorCode) -> None:
        is_expected = self._is_full or self._wanted is not None or now_of(runtime) >= self._safe_until_s
        if code in FENCED and not is_expected:
            self._shared.history.fenced.append(f"{self.member} at {now_of(runtime):.3f} s: {code.name}")
        self._is_full = True
        if code in FENCED or code is ErrorCode.FENCED_INSTANCE_ID:
            self._shared.states["members fenced"] += self.epoch > 0
            self.drop(runtime)
            self.epoch, self._wanted, self._reported = 0, None, None
        elif code is not ErrorCode.UNRELEASED_INSTANCE_ID:
            self.retry(code)

    def refused(self, code: ErrorCode) -> None:
        """Wait for the next heartbeat, whose answer has the reason."""

    async def leave(self, runtime: Runtime, *, for_short: bool = False) -> bool:
        if not self.member_id:
            return True
        self.drop(runtime)
        request = ConsumerGroupHeartbeatRequest(
            self._shared.group,
            self.member_id,
            LEAVING_FOR_SHORT if for_short else LEAVING,
            instance_id=self.instance_id,
        )
        answer = await self.ask(runtime, request, 1, ConsumerGroupHeartbeatResponse)
        if answer is None:
            return False
        code = ErrorCode(answer.error_code)
        if code not in {ErrorCode.NONE, ErrorCode.FENCED_INSTANCE_ID} | FENCED:
            self.retry(code)
            return False
        return True


class ClassicMembership(Membership):
    """A member that sends JoinGroup, SyncGroup and Heartbeat. It gives up all partitions before it joins."""

    has_to_join = True

    @property
    def is_joined(self) -> bool:
        return not self.has_to_join

    async def step(self, runtime: Runtime) -> None:
        if self.has_to_join:
            await self._join(runtime)
            return
        request = HeartbeatRequest(self._shared.group, self.epoch, self.member_id, self.instance_id)
        sent_s = now_of(runtime)
        answer = await self.ask(runtime, request, 4, HeartbeatResponse)
        if answer is None:
            return
        if answer.error_code == ErrorCode.NONE:
            self._shared.history.confirmed(self.member, now_of(runtime), sent_s + SAFE_S)
        else:
            self.refused(ErrorCode(answer.error_code))

    def refused(self, code: ErrorCode) -> None:
        if code not in REJOIN:
            self.retry(code)
            return
        self.has_to_join = True
        if code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
            self._shared.states["members fenced"] += 1
            self.member_id = ""

    async def _join(self, runtime: Runtime) -> None:
        await self._use(runtime, frozenset(), 0.0)
        subscription = ConsumerProtocolSubscription([self._shared.topic], None, [], -1)
        protocol = JoinGroupRequestProtocol(ASSIGNOR, encode_versioned(subscription, EMBEDDED_VERSION))
        request = JoinGroupRequest(
            self._shared.group,
            SESSION_TIMEOUT_MS,
            REBALANCE_TIMEOUT_MS,
            self.member_id,
            self.instance_id,
            PROTOCOL_TYPE,
            [protocol],
        )
        answer = await self.ask(runtime, request, 9, JoinGroupResponse, timeout_s=JOIN_S_MAX)
        if answer is None:
            return
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif code is ErrorCode.NONE:
            self._began()
            self._shared.states["joins with JoinGroup"] += 1
            self.member_id, self.epoch = answer.member_id, answer.generation_id
            await self._sync(runtime, self._shares(answer))
        else:
            self.refused(code)

    def _shares(self, answer: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Assign all partitions in turn, if this member leads a classic group."""
        if answer.leader != answer.member_id or answer.skip_assignment:
            return []
        members = sorted(each.member_id for each in answer.members)
        shares = []
        for number, member_id in enumerate(members):
            indexes = list(range(number, self._shared.partitions, len(members)))
            rows = [TopicPartition(self._shared.topic, indexes)] if indexes else []
            assignment = encode_versioned(ConsumerProtocolAssignment(rows), EMBEDDED_VERSION)
            shares.append(SyncGroupRequestAssignment(member_id, assignment))
        return shares

    async def _sync(self, runtime: Runtime, shares: Sequence[SyncGroupRequestAssignment]) -> None:
        request = SyncGroupRequest(
            self._shared.group, self.epoch, self.member_id, self.instance_id, PROTOCOL_TYPE, ASSIGNOR, shares
        )
        sent_s = now_of(runtime)
        answer = await self.ask(runtime, request, 5, SyncGroupResponse)
        if answer is None:
            return
        if answer.error_code != ErrorCode.NONE:
            self.refused(ErrorCode(answer.error_code))
            return
        self.has_to_join = False
        await self._use(runtime, partitions_of(bytes(answer.assignment)), sent_s + SAFE_S)

    async def leave(self, runtime: Runtime, *, for_short: bool = False) -> bool:
        """Leave the group. A static member that leaves for a short time sends nothing."""
        self.drop(runtime)
        if for_short or not self.member_id:
            return True
        member = MemberIdentity(self.member_id, self.instance_id)
        request = LeaveGroupRequest(self._shared.group, members=[member])
        answer = await self.ask(runtime, request, 5, LeaveGroupResponse)
        if answer is None:
            return False
        codes = {answer.error_code, *(row.error_code for row in answer.members)} - {ErrorCode.NONE}
        for code in codes - {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
            self.retry(ErrorCode(code))
            return False
        return True


def partitions_of(assignment: bytes) -> frozenset[int]:
    """Return the partitions in an assignment of the classic protocol, which has one topic or none."""
    if not assignment:
        return frozenset()
    message, _ = decode_versioned(ConsumerProtocolAssignment, assignment)
    return frozenset(index for row in message.assigned_partitions for index in row.partitions)
