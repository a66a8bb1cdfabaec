"""The groups of one partition of `__consumer_offsets`: state machines, offsets, and their log.

What lives here: carrying out the state machine's instructions (answers, timers, writes) and keeping memory equal to what is durable:
a commit can be read, and a plan is handed out, only after its record is. Everything runs on one event loop, and every change is one
synchronous step; the log resolves writes in order, so that memory changes in the order of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock

from ponor_broker.groups.events import HeartbeatRequest, JoinRequest, LeaveRequest, MemberClaim, SyncRequest
from ponor_broker.groups.group import Group
from ponor_broker.groups.instructions import (
    Answer,
    CancelTimer,
    HeartbeatAnswer,
    Instruction,
    JoinAnswer,
    LeaveAnswer,
    SetTimer,
    SyncAnswer,
    Timer,
    WriteGroup,
)
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.offsets import TopicPartition
from ponor_broker.groups.offsets_log import OffsetsLog
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import (
    CommittedOffset,
    Entry,
    GroupEntry,
    GroupKey,
    GroupRecord,
    OffsetEntry,
    OffsetKey,
)
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.groups.timers import TimerQueue
from ponor_broker.groups.waiting import WaitingRequests


class GroupShard:
    """Built when the partition opens here; serves once `load` has returned; ends with `close`."""

    def __init__(
        self,
        log: OffsetsLog,
        *,
        settings: GroupSettings,
        clock: Clock,
        timers: TimerQueue,
        has_room: Callable[[], bool],
        census: dict[GroupState, int],
    ) -> None:
        self._log = log
        self._settings = settings
        self._clock = clock
        self._timers = timers
        self._has_room = has_room
        self._census = census
        self._groups: dict[str, Group] = {}
        self._waiting = WaitingRequests()
        self._commits = 0
        self.is_loaded = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._groups)

    def groups(self) -> tuple[Group, ...]:
        """Every group, for reading only."""
        return tuple(self._groups.values())

    def get(self, group_id: str) -> Group | None:
        """A group, for reading only."""
        return self._groups.get(group_id)

    # --- what survives: one interface for restarts now, for moves later

    async def load(self) -> None:
        """Restore from the log.

        Raises:
            S3StreamError: the log cannot be read now.
            OffsetsLogCorruptError: it is damaged.
        """
        entries: dict[OffsetKey | GroupKey, Entry] = {}
        async for entry in self._log.replay():
            if entry.value is None:
                entries.pop(entry.key, None)
            else:
                entries[entry.key] = entry
        self.restore(entries.values())

    def restore(self, entries: Iterable[Entry]) -> None:
        """Take over state: a record for each group and each offset, no tombstones."""
        assert not self.is_loaded
        for entry in entries:
            group = self._groups.get(entry.key.group_id) or self._add(entry.key.group_id)
            if isinstance(entry, OffsetEntry):
                group.offsets.restore((entry.key.topic, entry.key.partition), entry.value)
            else:
                group.durable = entry.value
        self.is_loaded = True
        for group in self.groups():
            if group.durable is not None:
                self._run(group, group.membership.restore(group.durable))

    def snapshot(self) -> Iterator[Entry]:
        """Everything durable, in the form that `restore` takes."""
        for group in self.groups():
            if group.durable is not None:
                yield GroupEntry(GroupKey(group.group_id), group.durable)
            for (topic, partition), committed in group.offsets.items():
                yield OffsetEntry(OffsetKey(group.group_id, topic, partition), committed)

    def close(self, error: ErrorCode) -> None:
        """The partition is led elsewhere, or the broker stops: answer everybody who waits."""
        self._is_closed = True
        for group in self.groups():
            self._run(group, group.membership.unload(error))
            self._count(group, None)
        self._groups.clear()
        assert not len(self._waiting), "a request was left without an answer"

    # --- members

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """JoinGroup; waits as long as the rebalance takes."""
        group = self._groups.get(group_id)
        if group is None:
            if request.member_id:
                return JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            group = self._create(group_id)
            if group is None:
                return JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
        number, answer = self._waiting.open()
        self._run(group, group.membership.join(replace(request, request=number)))
        body = await answer
        assert isinstance(body, JoinAnswer)
        return body

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """SyncGroup; waits for the leader's plan to be durable."""
        group = self._groups.get(group_id)
        if group is None:
            return SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
        number, answer = self._waiting.open()
        self._run(group, group.membership.sync(replace(request, request=number)))
        body = await answer
        assert isinstance(body, SyncAnswer)
        return body

    async def heartbeat(self, group_id: str, claim: MemberClaim) -> ErrorCode:
        """Heartbeat."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        number, answer = self._waiting.open()
        self._run(group, group.membership.heartbeat(HeartbeatRequest(claim, number)))
        body = await answer
        assert isinstance(body, HeartbeatAnswer)
        return body.error

    async def leave(self, group_id: str, leaving: tuple[MemberClaim, ...]) -> LeaveAnswer:
        """LeaveGroup."""
        group = self._groups.get(group_id)
        if group is None:
            return LeaveAnswer(tuple((claim, ErrorCode.UNKNOWN_MEMBER_ID) for claim in leaving))
        number, answer = self._waiting.open()
        self._run(group, group.membership.leave(LeaveRequest(leaving, number)))
        body = await answer
        assert isinstance(body, LeaveAnswer)
        return body

    # --- offsets

    async def commit(
        self, group_id: str, claim: MemberClaim, commits: Mapping[TopicPartition, CommittedOffset]
    ) -> ErrorCode:
        """OffsetCommit; NONE only once the records are durable."""
        group = self._groups.get(group_id)
        if group is None:
            if claim.generation >= 0:
                return ErrorCode.ILLEGAL_GENERATION
            group = self._create(group_id)
            if group is None:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error, instructions = group.membership.commit(claim)
        self._run(group, instructions)
        if error is not ErrorCode.NONE or not commits:
            return error
        entries = [
            OffsetEntry(OffsetKey(group_id, topic, partition), committed)
            for (topic, partition), committed in commits.items()
        ]
        group.offsets.began(commits)
        written = self._log.append(entries)
        written.add_done_callback(partial(self._committed, group, commits))
        error = await self._within_write_timeout(written)
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error is ErrorCode.MESSAGE_TOO_LARGE else error

    def _committed(
        self,
        group: Group,
        commits: Mapping[TopicPartition, CommittedOffset],
        written: asyncio.Future[ErrorCode],
    ) -> None:
        if written.result() is ErrorCode.NONE:
            group.offsets.succeeded(commits)
        else:
            group.offsets.failed(commits)

    async def _within_write_timeout(self, written: asyncio.Future[ErrorCode]) -> ErrorCode:
        """The outcome of a write, or REQUEST_TIMED_OUT when it takes too long (it may still become durable later)."""
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settle(error: ErrorCode) -> None:
            if not answer.done():
                answer.set_result(error)

        self._commits += 1
        key = (self, self._commits)
        self._timers.set(
            key, self._settings.coordinator_write_timeout_ms, partial(settle, ErrorCode.REQUEST_TIMED_OUT)
        )
        written.add_done_callback(lambda done: settle(done.result()))
        try:
            return await answer
        finally:
            self._timers.cancel(key)

    # --- the end of groups

    async def delete(self, group_id: str) -> ErrorCode:
        """DeleteGroups: tombstones for the group and all its offsets; gone once they are durable."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        error = group.membership.delete()
        if error is not ErrorCode.NONE:
            return error
        return await self._within_write_timeout(self._bury(group))

    def _bury(self, group: Group) -> asyncio.Future[ErrorCode]:
        """Write the tombstones of a group that is dead already."""
        tombstones: list[Entry] = [
            OffsetEntry(OffsetKey(group.group_id, topic, partition), None)
            for topic, partition in group.offsets.to_bury()
        ]
        tombstones.append(GroupEntry(GroupKey(group.group_id), None))
        written = self._log.append(tombstones)
        written.add_done_callback(partial(self._buried, group))
        return written

    def _buried(self, group: Group, written: asyncio.Future[ErrorCode]) -> None:
        if self._is_closed:
            return
        if written.result() is ErrorCode.NONE:
            del self._groups[group.group_id]
            self._count(group, None)
            return
        # It lives on as the log has it, with an offset table that nothing was taken from.
        group.membership = Membership(self._settings)
        if group.durable is not None:
            self._run(group, group.membership.restore(group.durable))

    def expire(self) -> None:
        """Drop offsets whose time is over, and groups that hold nothing any more. Called now and then."""
        for group in self.groups():
            if group.membership.state is not GroupState.EMPTY:
                continue
            expired = group.offsets.expired(
                self._clock.wall_ms(), group.quiet_since_ms, self._settings.offsets_retention_ms
            )
            if group.membership.is_unused and group.offsets.is_held_only_by(expired):
                group.membership.delete()
                self._bury(group)
            elif expired:
                self._drop_offsets(group, expired)

    def _drop_offsets(self, group: Group, partitions: tuple[TopicPartition, ...]) -> None:
        tombstones = [
            OffsetEntry(OffsetKey(group.group_id, topic, index), None) for topic, index in partitions
        ]

        def dropped(written: asyncio.Future[ErrorCode]) -> None:
            if written.result() is ErrorCode.NONE:
                for partition in partitions:
                    group.offsets.restore(partition, None)

        self._log.append(tombstones).add_done_callback(dropped)

    # --- carrying out

    def _create(self, group_id: str) -> Group | None:
        if not self._has_room():
            return None
        return self._add(group_id)

    def _add(self, group_id: str) -> Group:
        group = self._groups[group_id] = Group(group_id, Membership(self._settings))
        self._count(group, GroupState.EMPTY)
        return group

    def _count(self, group: Group, state: GroupState | None) -> None:
        """Keep the number of groups in each state, for telemetry."""
        if group.counted_as is not None:
            self._census[group.counted_as] -= 1
        if state is not None:
            self._census[state] += 1
        group.counted_as = state

    def _run(self, group: Group, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Answer(request, body):
                    self._waiting.settle(request, body)
                case SetTimer(timer, delay_ms):
                    self._timers.set((self, group, timer), delay_ms, partial(self._timer_fired, group, timer))
                case CancelTimer(timer):
                    self._timers.cancel((self, group, timer))
                case WriteGroup(write_id, record):
                    self._write(group, write_id, record)
        if group.counted_as is not None and group.counted_as is not group.membership.state:
            self._count(group, group.membership.state)

    def _timer_fired(self, group: Group, timer: Timer) -> None:
        self._run(group, group.membership.timer_fired(timer))

    def _write(self, group: Group, write_id: int, record: GroupRecord) -> None:
        stamped = replace(record, state_timestamp_ms=self._clock.wall_ms())
        membership = group.membership
        key = (self, group, write_id)

        def ended(error: ErrorCode) -> None:
            self._timers.cancel(key)
            if error is ErrorCode.MESSAGE_TOO_LARGE:
                error = ErrorCode.UNKNOWN_SERVER_ERROR  # as Kafka: members cannot do anything about it
            # The second of time-out and outcome finds that the state machine waits for it no more.
            self._run(group, membership.written(write_id, error))

        def written(outcome: asyncio.Future[ErrorCode]) -> None:
            if outcome.result() is ErrorCode.NONE:
                group.durable = stamped
            ended(outcome.result())

        self._timers.set(
            key,
            self._settings.coordinator_write_timeout_ms,
            partial(ended, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        )
        self._log.append([GroupEntry(GroupKey(group.group_id), stamped)]).add_done_callback(written)
