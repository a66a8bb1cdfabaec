"""The consumer groups of a shard: executes their state machines (docs/design/consumer-groups.md).

An event changes memory when the log accepts its records. A request is answered when they, and all earlier
records of its group, are durable. If an accepted batch fails, memory contains changes that the log does not:
the shard then loads the log again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock
from ponor_runtime.turns import Turns, turn

from ponor_broker.coordination.record_log import RecordLog
from ponor_broker.coordination.timers import TimerQueue
from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest, Outcome, TimerInstruction
from ponor_broker.groups.consumer.membership import ConsumerMembership
from ponor_broker.groups.consumer.records import ConsumerEntry, EpochEntry
from ponor_broker.groups.consumer.settings import ConsumerSettings
from ponor_broker.groups.consumer.topics import ImageTopics
from ponor_broker.groups.events import JoinRequest, MemberClaim, SyncRequest
from ponor_broker.groups.group import Group
from ponor_broker.groups.group_actions import GroupActions
from ponor_broker.groups.group_counters import CLASSIC_TYPE, CONSUMER_TYPE, GroupCounters
from ponor_broker.groups.group_table import GroupTable
from ponor_broker.groups.instructions import JoinAnswer, LeaveAnswer, SetTimer, SyncAnswer, Timer
from ponor_broker.groups.member import CONSUMER_PROTOCOL_TYPE
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.migration import GroupMigration, UpgradeRefusedError
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.record_codec import Entry
from ponor_broker.groups.records import GroupEntry, GroupKey
from ponor_broker.groups.settings import GroupSettings

RETRY_MS: Final = 1_000
"""Pause before an event of a timer, or a computation, is attempted again after the log refused it."""

Spawn: TypeAlias = Callable[[Coroutine[None, None, None], str], "asyncio.Task[None]"]


class ConsumerGroups:
    """The consumer groups of one shard."""

    def __init__(
        self,
        log: RecordLog[Entry],
        table: GroupTable,
        actions: GroupActions,
        *,
        settings: GroupSettings,
        topics: ImageTopics,
        clock: Clock,
        timers: TimerQueue,
        counters: GroupCounters,
        spawn: Spawn,
        failed: Callable[[], None],
    ) -> None:
        """`failed` is called if an accepted batch does not become durable: memory must be loaded again."""
        self._log = log
        self._table = table
        self._actions = actions
        self._settings = settings
        self._of_members: ConsumerSettings = settings.of_consumer_groups()
        self._topics = topics
        self._clock = clock
        self._timers = timers
        self._counters = counters
        self._spawn = spawn
        self._migration = GroupMigration(settings, self._of_members, topics)
        self._failed = failed
        self._turns = Turns()
        self._in_flight: dict[Group, asyncio.Future[ErrorCode]] = {}
        """The newest write in flight of each group."""
        self._waiting: set[asyncio.Future[ErrorCode]] = set()
        self._working: dict[Group, asyncio.Task[None]] = {}

    # --- heartbeats

    async def heartbeat(self, group_id: str, request: HeartbeatRequest) -> HeartbeatAnswer:
        """ConsumerGroupHeartbeat of valid form."""
        answer = await self._heartbeat_once(group_id, request)
        group = self._table.get(group_id)
        work = None if group is None else self._working.get(group)
        if work is None or request.member_epoch != 0 or answer.error is not ErrorCode.NONE:
            return answer
        # The first answer to a member of a large group contains its assignment, as in a small group.
        await asyncio.wait({work})
        return await self._heartbeat_once(group_id, request)

    async def _heartbeat_once(self, group_id: str, request: HeartbeatRequest) -> HeartbeatAnswer:
        group = self._table.get(group_id)
        if group is not None and group.consumer is not None:
            answer = self._execute(group, group.consumer.heartbeat(request, self._clock.wall_ms()))
        else:
            found = self._replaceable(group_id, group, request)
            answer = found if isinstance(found, HeartbeatAnswer) else self._begin(found, request)
            if isinstance(found, Group) and group is None and found.consumer is None:
                self._table.remove(found)
        group = self._table.get(group_id)
        if group is not None:
            error = await self._durable(group)
            if error is not ErrorCode.NONE:
                return _refusal(error)
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
        if request.member_epoch != 0:
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
        return ConsumerMembership(group.group_id, self._of_members, self._topics, self._table.budget.admits)

    def make_classic(self, group: Group) -> ErrorCode:
        """Make an empty consumer group a classic one, because a classic member joins."""
        assert group.consumer is not None
        if group.membership.state is not GroupState.EMPTY:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        tombstones = list(group.consumer.tombstones())
        error = self._append(group, tombstones) if tombstones else ErrorCode.NONE
        if error is ErrorCode.NONE:
            for entry in tombstones:
                group.consumer.contents.put(entry)
            self.unload(group)
            group.membership = Membership(self._settings)
            self._actions.recount(group)
        return error

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

    def _run(self, group: Group, outcome: Outcome) -> ErrorCode:
        """Write the records of an event; then set its timers, or undo it if the log refuses."""
        assert group.consumer is not None
        if outcome.is_downgrade:
            return self._downgrade(group, outcome)
        error = self._append(group, outcome.draft.entries) if outcome.draft.entries else ErrorCode.NONE
        if error is ErrorCode.NONE:
            self._accepted(group, outcome)
        else:
            group.consumer.take_back(outcome)
        return error

    def _downgrade(self, group: Group, outcome: Outcome) -> ErrorCode:
        """Execute an event after which the group is a classic one."""
        assert group.consumer is not None
        classic, record = self._migration.downgraded(group.consumer.contents)
        stamped = replace(record, state_timestamp_ms=self._clock.wall_ms())
        tombstones = group.consumer.tombstones()
        created = GroupEntry(GroupKey(group.group_id), stamped)
        error = self._append(group, [*outcome.draft.entries, *tombstones, created])
        if error is not ErrorCode.NONE:
            group.consumer.take_back(outcome)
            if error is ErrorCode.UNKNOWN_SERVER_ERROR:
                group.consumer.stay()
            return error
        self._set_timers(group, outcome.timers)
        self.unload(group)
        group.membership, group.durable = classic, stamped
        group.quiet_since_ms = stamped.state_timestamp_ms
        self._actions.run(group, classic.continue_adopted())
        self._counters.migrated(CLASSIC_TYPE)
        return error

    def _accepted(self, group: Group, outcome: Outcome) -> None:
        self._set_timers(group, outcome.timers)
        if outcome.draft.entries:
            raised = sum(isinstance(entry, EpochEntry) for entry in outcome.draft.entries)
            self._counters.rebalanced(CONSUMER_TYPE, raised)
            self._actions.recount(group)
        self._work_if_due(group)

    def _append(self, group: Group, entries: Sequence[Entry]) -> ErrorCode:
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        error = self._log.try_append(entries, partial(self._written, group, done))
        if error is ErrorCode.NONE:
            self._in_flight[group] = done
        # As in Kafka, members do not get MESSAGE_TOO_LARGE: they cannot make the records smaller.
        return ErrorCode.UNKNOWN_SERVER_ERROR if error is ErrorCode.MESSAGE_TOO_LARGE else error

    def _written(self, group: Group, done: asyncio.Future[ErrorCode], error: ErrorCode) -> None:
        if self._in_flight.get(group) is done:
            del self._in_flight[group]
        done.set_result(error)
        if error is not ErrorCode.NONE and not self._log.is_closed:
            self._failed()

    async def _durable(self, group: Group) -> ErrorCode:
        """Wait until all records of a group are durable; return the error if they are not in time."""
        write = self._in_flight.get(group)
        if write is None:
            return ErrorCode.NONE
        outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settle(error: ErrorCode) -> None:
            if not outcome.done():
                outcome.set_result(error)

        write.add_done_callback(lambda done: settle(done.result()))
        self._waiting.add(outcome)
        timeout_ms = self._settings.coordinator_write_timeout_ms
        key = (self, outcome)
        self._timers.set(key, timeout_ms, partial(settle, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        try:
            return await outcome
        finally:
            self._timers.cancel(key)
            self._waiting.discard(outcome)

    # --- timers

    def _set_timers(self, group: Group, instructions: Sequence[TimerInstruction]) -> None:
        for instruction in instructions:
            key = (self, group, instruction.timer)
            if isinstance(instruction, SetTimer):
                self._timers.set(key, instruction.delay_ms, partial(self._fired, group, instruction.timer))
            else:
                self._timers.cancel(key)

    def _fired(self, group: Group, timer: Timer) -> None:
        assert group.consumer is not None
        error = self._run(group, group.consumer.timer_fired(timer, self._clock.wall_ms()))
        if error is not ErrorCode.NONE and not self._log.is_closed:
            self._set_timers(group, [SetTimer(timer, RETRY_MS)])

    # --- work in steps

    def _work_if_due(self, group: Group) -> None:
        membership = group.consumer
        assert membership is not None
        is_due = membership.needs_target or membership.needs_resolution(self._clock.wall_ms())
        if is_due and group not in self._working and not self._log.is_closed:
            self._working[group] = self._spawn(self._work(group, membership), "target of a consumer group")

    async def _work(self, group: Group, membership: ConsumerMembership) -> None:
        try:
            is_done = True
            while is_done and group.membership is membership and group in self._table:
                if membership.needs_resolution(self._clock.wall_ms()):
                    is_done = await self._resolve(group, membership)
                elif membership.needs_target:
                    is_done = await self._compute(group, membership)
                else:
                    return
        finally:
            self._working.pop(group, None)

    async def _resolve(self, group: Group, membership: ConsumerMembership) -> bool:
        resolution = membership.begin_resolution(self._clock.wall_ms())
        matches = await self._turns.run(resolution.steps)
        if group.membership is not membership:
            return False
        outcome = membership.resolved(resolution, matches, self._clock.wall_ms())
        return self._run(group, outcome) is ErrorCode.NONE

    async def _compute(self, group: Group, membership: ConsumerMembership) -> bool:
        computation = membership.begin_computation()
        result = await self._turns.run(computation.steps)
        for part in membership.installation(computation, result, self._clock.wall_ms()):
            if group.membership is not membership:
                membership.take_back(part)
                return False
            if self._run(group, part) is not ErrorCode.NONE:
                self._set_timers(group, membership.retry_assignment(RETRY_MS))
                return False
            await turn()
        return True

    # --- load and unload

    def put(self, group: Group, entry: ConsumerEntry) -> None:
        """Restore one record."""
        if group.consumer is None:
            group.membership = self._new_membership(group)
        membership = group.consumer
        assert membership is not None
        membership.contents.put(entry)

    def restored(self, group: Group) -> None:
        """Start the timers of a group whose records are restored."""
        assert group.consumer is not None
        group.durable = None
        self._set_timers(group, group.consumer.restored())
        self._actions.recount(group)

    def unload(self, group: Group) -> None:
        """Cancel the timers of a group."""
        assert group.consumer is not None
        self._set_timers(group, group.consumer.unloaded())

    def close(self, error: ErrorCode) -> None:
        """Answer waiting requests, and stop the work."""
        for work in self._working.values():
            work.cancel()
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_result(error)


def _refusal(error: ErrorCode, message: str | None = None) -> HeartbeatAnswer:
    return HeartbeatAnswer(error, message or error.meaning)
