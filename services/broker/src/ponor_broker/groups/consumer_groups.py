"""The consumer groups of a shard: their requests and their work (docs/design/consumer-groups.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest, Outcome
from ponor_broker.groups.consumer.membership import ConsumerMembership
from ponor_broker.groups.consumer.records import ConsumerEntry, EpochEntry
from ponor_broker.groups.consumer.settings import ConsumerSettings
from ponor_broker.groups.consumer.topics import ImageTopics
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.group import Group
from ponor_broker.groups.group_counters import CLASSIC_TYPE, CONSUMER_TYPE
from ponor_broker.groups.instructions import JoinAnswer, LeaveAnswer, SyncAnswer
from ponor_broker.groups.member import CONSUMER_PROTOCOL_TYPE
from ponor_broker.groups.migration import GroupMigration, UpgradeRefusedError
from ponor_broker.groups.outcome import GroupOutcome
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import GroupEntry, GroupKey
from ponor_broker.groups.server_assigned_groups import RETRY_MS, ServerAssignedGroups, ShardParts, Work


class ConsumerGroups(ServerAssignedGroups):
    """The consumer groups of one shard."""

    def __init__(self, parts: ShardParts, topics: ImageTopics) -> None:
        super().__init__(parts)
        self._of_members: ConsumerSettings = parts.settings.of_consumer_groups()
        self._topics = topics
        self._migration = GroupMigration(parts.settings, self._of_members, topics)

    # --- heartbeats

    async def heartbeat(self, group_id: str, request: HeartbeatRequest) -> HeartbeatAnswer:
        """ConsumerGroupHeartbeat of valid form."""
        answer = self._handle(group_id, request)
        group = self._table.get(group_id)
        if group is None:
            return answer
        work = self._working.get(group)
        error = await self._durable(group)
        if error is not ErrorCode.NONE:
            return _refusal(error)
        if work is None or request.member_epoch != 0 or answer.error is not ErrorCode.NONE:
            return answer
        # The first answer to a member of a large group contains its assignment, as in a small group.
        await asyncio.wait({work})
        if self._parts.log.is_closed:
            return _refusal(ErrorCode.NOT_COORDINATOR)
        # The member may have left meanwhile, or another one may have replaced it: it does not join again.
        assert answer.member_epoch > 0
        return await self.heartbeat(group_id, replace(request, member_epoch=answer.member_epoch))

    def _handle(self, group_id: str, request: HeartbeatRequest) -> HeartbeatAnswer:
        """Handle a heartbeat; return its answer, which must wait until the records are durable."""
        group = self._table.get(group_id)
        if group is not None and group.consumer is not None:
            answer = self._execute(group, group.consumer.heartbeat(request, self._clock.wall_ms()))
        else:
            found = self._replaceable(group_id, group, request)
            answer = found if isinstance(found, HeartbeatAnswer) else self._begin(found, request)
            if isinstance(found, Group) and group is None and found.consumer is None:
                self._table.remove(found)
        return answer

    def _replaceable(
        self, group_id: str, group: Group | None, request: HeartbeatRequest
    ) -> Group | HeartbeatAnswer:
        """Return a new group, or the classic group that becomes a consumer group."""
        if group is None:
            if request.member_epoch != 0:
                return _refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
            return self._table.create(group_id) or _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if group.membership.state is GroupState.DEAD:
            return _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if request.member_epoch != 0 or group.classic is None:
            message = f"Group {group_id} is not a consumer group."
            return _refusal(ErrorCode.GROUP_ID_NOT_FOUND, message)
        return group

    def _begin(self, group: Group, request: HeartbeatRequest) -> HeartbeatAnswer:
        """Make a classic group, or a new one, a consumer group."""
        classic = group.classic
        assert classic is not None
        membership = self._new_membership(group)
        try:
            upgraded = self._migration.upgraded(group.group_id, classic)
        except UpgradeRefusedError as refusal:
            return _refusal(ErrorCode.GROUP_ID_NOT_FOUND, str(refusal))
        for entry in upgraded:
            membership.contents.put(entry)
        if not self._table.budget.admits(membership.size_bytes - classic.size_bytes):
            return _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        outcome = membership.heartbeat(request, self._clock.wall_ms())
        assert outcome.answer is not None
        tombstones = () if group.is_simple else (GroupEntry(GroupKey(group.group_id), None),)
        entries = [*tombstones, *upgraded, *outcome.draft.entries]
        error = self._append(group, entries) if outcome.draft.entries else None
        if error is not ErrorCode.NONE:
            return outcome.answer if error is None else _refusal(error)
        # The members join again.
        self._actions.run(group, classic.unload(ErrorCode.REBALANCE_IN_PROGRESS))
        group.membership, group.durable = membership, None
        self._set_timers(group, membership.restored())
        if upgraded:
            self._counters.migrated(CONSUMER_TYPE)
        self._accepted(group, outcome)
        return outcome.answer

    def _new_membership(self, group: Group) -> ConsumerMembership:
        configs = partial(self._parts.configs, group.group_id)
        settings = replace(self._of_members, configs=configs)
        return ConsumerMembership(group.group_id, settings, self._topics, self._table.budget.admits)

    # --- requests of classic members, and of administrators

    async def join(self, group: Group, request: JoinRequest) -> JoinAnswer:
        """JoinGroup of a group with members."""
        membership = group.consumer
        assert membership is not None
        outcome = membership.join(request, self._clock.wall_ms())
        answer = self._execute(group, outcome)
        error = answer.error
        if error is ErrorCode.NONE:
            error = await self._durable(group)
        if error is not ErrorCode.NONE:
            return JoinAnswer(error, answer.member_id or request.member_id)
        assert answer.member_id is not None
        classic = group.classic if outcome.is_downgrade else None
        return JoinAnswer(
            ErrorCode.NONE,
            answer.member_id,
            generation=answer.member_epoch if classic is None else classic.generation,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name if classic is None else classic.protocol_name,
        )

    async def sync(self, group: Group, request: SyncRequest) -> SyncAnswer:
        """SyncGroup."""
        assert group.consumer is not None
        answer, timers = group.consumer.sync(request)
        self._set_timers(group, timers)
        error = await self._durable(group)
        return answer if error is ErrorCode.NONE else SyncAnswer(error)

    def classic_heartbeat(self, group: Group, claim: MemberClaim) -> ErrorCode:
        """Heartbeat."""
        assert group.consumer is not None
        error, outcome = group.consumer.classic_heartbeat(claim, self._clock.wall_ms())
        refusal = self._run(group, outcome)
        return error if refusal is ErrorCode.NONE else refusal

    async def leave(self, group: Group, leaving: tuple[MemberClaim, ...]) -> LeaveAnswer:
        """LeaveGroup."""
        assert group.consumer is not None
        answer, outcome = group.consumer.leave(leaving, self._clock.wall_ms())
        error = self._run(group, outcome)
        if error is ErrorCode.NONE:
            error = await self._durable(group)
        if error is ErrorCode.NONE:
            return answer
        return LeaveAnswer(tuple((claim, error) for claim in leaving))

    # --- execution

    def _execute(self, group: Group, outcome: Outcome) -> HeartbeatAnswer:
        """Execute a heartbeat; return its answer, which must wait until the records are durable."""
        assert outcome.answer is not None
        error = self._run(group, outcome)
        return outcome.answer if error is ErrorCode.NONE else _refusal(error)

    def _run(self, group: Group, outcome: GroupOutcome[Any, Any]) -> ErrorCode:
        if isinstance(outcome, Outcome) and outcome.is_downgrade:
            return self._downgrade(group, outcome)
        return super()._run(group, outcome)

    def _count(self, entries: Sequence[ConsumerEntry]) -> None:
        raised = sum(isinstance(entry, EpochEntry) for entry in entries)
        self._counters.rebalanced(CONSUMER_TYPE, raised)

    def _downgrade(self, group: Group, outcome: Outcome) -> ErrorCode:
        """Execute an event after which the group is a classic one."""
        assert group.consumer is not None
        classic, record = self._migration.downgraded(group.consumer.contents)
        stamped = replace(record, state_timestamp_ms=self._clock.wall_ms())
        tombstones = list(group.consumer.tombstones())
        created = GroupEntry(GroupKey(group.group_id), stamped)
        error = self._append(group, [*outcome.draft.entries, *tombstones, created])
        if error is not ErrorCode.NONE:
            group.consumer.take_back(outcome)
            if error is ErrorCode.UNKNOWN_SERVER_ERROR:
                group.consumer.stay()
            return error
        self._set_timers(group, outcome.timers)
        self._retire(group, tombstones)
        group.membership, group.durable = classic, stamped
        group.quiet_since_ms = stamped.state_timestamp_ms
        self._actions.run(group, classic.continue_adopted())
        self._counters.migrated(CLASSIC_TYPE)
        return error

    # --- work in steps

    def _next_work(self, group: Group) -> Work | None:
        membership = group.consumer
        assert membership is not None
        if membership.needs_resolution(self._clock.wall_ms()):
            return partial(self._resolve, group, membership)
        return partial(self._compute, group, membership) if membership.needs_target else None

    async def _resolve(self, group: Group, membership: ConsumerMembership) -> bool:
        resolution = membership.begin_resolution(self._clock.wall_ms())
        matches = await self._turns.run(resolution.steps)
        if group.membership is not membership:
            return False
        parts = membership.resolved(resolution, matches, self._clock.wall_ms())
        is_stored = await self._install(group, membership, parts, ())
        if not is_stored:
            membership.delay_resolution(self._clock.wall_ms())
        return is_stored

    async def _compute(self, group: Group, membership: ConsumerMembership) -> bool:
        computation = membership.begin_computation()
        result = await self._turns.run(computation.steps)
        parts = membership.installation(computation, result, self._clock.wall_ms())
        return await self._install(group, membership, parts, membership.retry_assignment(RETRY_MS))

    # --- load

    def put(self, group: Group, entry: ConsumerEntry) -> None:
        """Restore one record."""
        if group.consumer is None:
            group.membership = self._new_membership(group)
        membership = group.consumer
        assert membership is not None
        membership.contents.put(entry)


def _refusal(error: ErrorCode, message: str | None = None) -> HeartbeatAnswer:
    return HeartbeatAnswer(error, message or error.meaning)
