"""The groups of one partition of `__consumer_offsets`: state machines, offsets, and their log.

What lives here: carrying out the state machine's instructions (answers, timers, writes) and keeping memory equal to what is durable:
a commit can be read, and a plan is handed out, only after its record is. Everything runs on one event loop, and every change is one
synchronous step; the log resolves writes in order, so that memory changes in the order of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        self._writes = 0
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

        def apply(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                group.offsets.succeeded(commits)
            else:
                group.offsets.failed(commits)

        error = await self._write(entries, apply)
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error is ErrorCode.MESSAGE_TOO_LARGE else error

    async def _write(self, entries: Sequence[Entry], apply: Callable[[ErrorCode], None]) -> ErrorCode:
        """Append, apply the outcome to memory whenever it comes, and wait for it so long as the client is asked to.

        Returns:
            The outcome, or REQUEST_TIMED_OUT: then the entries may still become durable, and be applied, later.
        """
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def settle(error: ErrorCode) -> None:
            if not answer.done():
                answer.set_result(error)

        def ended(error: ErrorCode) -> None:
            apply(error)
            settle(error)

        self._writes += 1
        key = (self, self._writes)
        timeout_ms = self._settings.coordinator_write_timeout_ms
        self._timers.set(key, timeout_ms, partial(settle, ErrorCode.REQUEST_TIMED_OUT))
        self._log.append(entries, ended)
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
        return await self._write(self._tombstones(group), partial(self._buried, group))

    def _tombstones(self, group: Group) -> list[Entry]:
        """What ends a group, commits included that are still under way."""
        return [
            *(
                OffsetEntry(OffsetKey(group.group_id, topic, partition), None)
                for topic, partition in group.offsets.to_bury()
            ),
            GroupEntry(GroupKey(group.group_id), None),
        ]

    def _buried(self, group: Group, error: ErrorCode) -> None:
        if self._is_closed:
            return
        if error is ErrorCode.NONE:
            del self._groups[group.group_id]
            self._count(group, None)
            return
        # It lives on as the log has it; nothing was taken from its offsets.
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
                self._log.append(self._tombstones(group), partial(self._buried, group))
            elif expired:
                self._drop_offsets(group, expired)

    def _drop_offsets(self, group: Group, partitions: tuple[TopicPartition, ...]) -> None:
        tombstones = [
            OffsetEntry(OffsetKey(group.group_id, topic, index), None) for topic, index in partitions
        ]

        def dropped(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                for partition in partitions:
                    group.offsets.restore(partition, None)

        self._log.append(tombstones, dropped)

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
                    self._keep(group, write_id, record)
        if group.counted_as is not None and group.counted_as is not group.membership.state:
            self._count(group, group.membership.state)

    def _timer_fired(self, group: Group, timer: Timer) -> None:
        self._run(group, group.membership.timer_fired(timer))

    def _keep(self, group: Group, write_id: int, record: GroupRecord) -> None:
        stamped = replace(record, state_timestamp_ms=self._clock.wall_ms())
        membership = group.membership
        key = (self, group, write_id)

        def tell(error: ErrorCode) -> None:
            # The second of time-out and outcome finds that the state machine does not wait for it any more.
            self._run(group, membership.written(write_id, error))

        def ended(error: ErrorCode) -> None:
            self._timers.cancel(key)
            if error is ErrorCode.NONE:
                group.durable = stamped
            # Too large: as Kafka, since there is nothing that members could do about it.
            tell(ErrorCode.UNKNOWN_SERVER_ERROR if error is ErrorCode.MESSAGE_TOO_LARGE else error)

        timeout_ms = self._settings.coordinator_write_timeout_ms
        self._timers.set(key, timeout_ms, partial(tell, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        self._log.append([GroupEntry(GroupKey(group.group_id), stamped)], ended)
