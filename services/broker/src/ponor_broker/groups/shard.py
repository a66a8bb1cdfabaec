"""The groups of one partition of `__consumer_offsets`.

Handles the requests of members and committing clients, and loads and unloads the partition. A
commit becomes readable, and assignments are sent, only after their record is durable.
`group_actions.py` executes the state machines, `removal.py` removes groups and offsets, and
`coordination/log_rewrite.py` keeps the log short.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock
from ponor_runtime.turns import Steps, Turns

from ponor_broker.coordination.log_rewrite import LogRewrite
from ponor_broker.coordination.ports import GroupConfigs, InternalTopicCreator, no_group_configs
from ponor_broker.coordination.record_log import RecordLog
from ponor_broker.coordination.share_persister import SharePersister
from ponor_broker.coordination.timers import TimerQueue
from ponor_broker.coordination.transactional_append import TransactionalProducer, Verification
from ponor_broker.groups.consumer.topics import ImageTopics
from ponor_broker.groups.consumer_groups import ConsumerGroups
from ponor_broker.groups.events import JoinRequest, LeaveRequest, MemberClaim, SyncRequest
from ponor_broker.groups.group import Group
from ponor_broker.groups.group_actions import GroupActions
from ponor_broker.groups.group_counters import CONSUMER_TYPE, SHARE_TYPE, STREAMS_TYPE, GroupCounters
from ponor_broker.groups.group_table import GroupBudget, GroupTable
from ponor_broker.groups.instructions import JoinAnswer, LeaveAnswer, SyncAnswer
from ponor_broker.groups.member import member_bytes
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.offset_access import refusal_of_commit
from ponor_broker.groups.offsets import TopicPartition
from ponor_broker.groups.pending_offsets import pending_bytes
from ponor_broker.groups.pending_replay import PendingReplay, PendingRow
from ponor_broker.groups.record_codec import Entry
from ponor_broker.groups.records import CommittedOffset, GroupEntry, GroupKey, OffsetEntry, OffsetKey
from ponor_broker.groups.removal import GroupRemoval, IsGone
from ponor_broker.groups.server_assigned_groups import ServerAssignedGroups, ShardParts, Spawn
from ponor_broker.groups.settings import GroupSettings
from ponor_broker.groups.share.records import ShareEntry, StatePartitionsEntry
from ponor_broker.groups.share_groups import ShareGroups
from ponor_broker.groups.streams.records import StreamsEntry
from ponor_broker.groups.streams_groups import StreamsGroups

_ENTRIES_PER_STEP: Final = 200
"""Records of the log that are restored per event-loop turn: about 8 ms."""

_FREED_PER_STEP: Final = 1_000
"""Groups and offsets that are freed per event-loop turn."""

_ENDED_PER_STEP: Final = 1_000
"""Offsets of ended transactions that become visible or are dropped per event-loop turn."""

_UNDER_WAY_S: Final = 0.02
"""Interval of the check whether writes of an earlier shard are durable."""


class GroupShard:
    """The groups of one partition: created when the partition opens, usable between `load` and `close`."""

    def __init__(
        self,
        log: RecordLog[Entry],
        *,
        settings: GroupSettings,
        clock: Clock,
        timers: TimerQueue,
        budget: GroupBudget,
        counters: GroupCounters,
        rewrite_due: Callable[[], None],
        forget_due: Callable[[], None],
        is_gone: IsGone,
        topics: ImageTopics,
        creator: InternalTopicCreator,
        turns: Turns,
        spawn: Spawn,
        failed: Callable[[], None],
        persister: SharePersister | None = None,
        group_configs: GroupConfigs = no_group_configs,
    ) -> None:
        """`failed` is called if the memory does not agree with the log, and must be loaded again."""
        self._log = log
        self._clock = clock
        self._budget = budget
        self._rewrite_due = rewrite_due
        self._forget_due = forget_due
        self._is_gone = is_gone
        self._table = GroupTable(settings, budget)
        self._actions = GroupActions(
            log, self._table, settings=settings, clock=clock, timers=timers, counters=counters
        )
        state = (log, self._table, self._actions, settings, clock, timers, counters, turns)
        parts = ShardParts(*state, spawn, failed, group_configs)
        self.consumers = ConsumerGroups(parts, topics)
        self.shares = ShareGroups(parts, topics, persister)
        self.streams = StreamsGroups(parts, topics, creator)
        self._executors: dict[str, ServerAssignedGroups] = {
            CONSUMER_TYPE: self.consumers,
            SHARE_TYPE: self.shares,
            STREAMS_TYPE: self.streams,
        }
        """What executes the groups of each type whose assignment the coordinator computes."""
        self.removal = GroupRemoval(log, self._table, self._actions, settings=settings, clock=clock)
        self.rewrite: LogRewrite[Entry] = LogRewrite(
            log,
            self._current,
            log_bytes_min=settings.offsets_rewrite_log_bytes_min,
            ratio=settings.offsets_rewrite_ratio,
        )
        self._in_transactions: dict[int, set[str]] = {}
        """Ids of the groups with pending offsets, by producer id."""
        self._ended_offsets = 0
        """Offsets to which any marker was applied since the last step. Many markers may become durable at a
        time."""
        self.is_loaded = False
        self.has_to_forget_topics = True
        """Whether topics may have been deleted since the last check; True after a load."""

    def __len__(self) -> int:
        return len(self._table)

    def groups(self) -> tuple[Group, ...]:
        """Return every group, for reading only."""
        return tuple(self._table)

    def get(self, group_id: str) -> Group | None:
        """Return a group, for reading only."""
        return self._table.get(group_id)

    @property
    def log_size_bytes(self) -> int:
        """Bytes that the next load reads."""
        return self._log.size_bytes

    def _executor_of(self, group: Group) -> ServerAssignedGroups:
        return self._executors[group.membership.group_type]

    # restore and snapshot

    async def load(self) -> None:
        """Restore from the log.

        Raises:
            S3StreamError: the log cannot be read now.
            RecordLogCorruptError: the log is damaged.
        """
        entries: dict[Hashable, Entry] = {}
        transactions = PendingReplay(entries)
        read = 0
        async for entry in self._log.replay(lambda: self._clock.sleep(_UNDER_WAY_S), transactions):
            read += 1
            if not read % _ENTRIES_PER_STEP:
                await self._clock.sleep(0)  # let other tasks run
            if entry.value is None:
                entries.pop(entry.key, None)
            else:
                entries[entry.key] = entry
        await self.restore(entries.values(), transactions.pending.rows())

    async def restore(self, entries: Iterable[Entry], pending: Iterable[PendingRow] = ()) -> None:
        """Restore one record for each group and each offset, without tombstones, and the offsets of open
        transactions, in bounded event-loop turns; then serve.
        """
        assert not self.is_loaded
        state_bytes = 0
        for number, entry in enumerate(entries, 1):
            if not number % _ENTRIES_PER_STEP:
                await self._clock.sleep(0)
            group = self._table.get(entry.key.group_id) or self._table.add(entry.key.group_id)
            if isinstance(entry, OffsetEntry):
                group.offsets.restore((entry.key.topic, entry.key.partition), entry.value)
            elif isinstance(entry, GroupEntry):
                group.durable = entry.value
            elif isinstance(entry, ShareEntry | StatePartitionsEntry):
                self.shares.put(group, entry)
            elif isinstance(entry, StreamsEntry):
                self.streams.put(group, entry)
            else:
                self.consumers.put(group, entry)
            state_bytes += self._log.size_of(entry)
        for number, (producer_id, key, offset) in enumerate(pending, 1):
            if not number % _ENTRIES_PER_STEP:
                await self._clock.sleep(0)
            group = self._table.get(key.group_id) or self._table.add(key.group_id)
            self._put_pending(group, producer_id, (key.topic, key.partition), offset)
        self.rewrite.loaded(state_bytes)
        async for group in self._table.walk(self._clock):
            if group.server_assigned is not None:
                self._executor_of(group).restored(group)
            elif group.durable is not None and group.classic is not None:
                group.quiet_since_ms = group.durable.state_timestamp_ms
                self._actions.run(group, group.classic.restore(group.durable))
            else:
                self._actions.recount(group)
        self.is_loaded = True
        self._log.accept_markers(self._transaction_ended)
        self.check_log()

    def snapshot(self) -> Iterator[Entry]:
        """Yield all durable state in the form that `restore` takes."""
        for group in self.groups():
            yield from _membership_entries(group)
            for (topic, partition), committed in group.offsets.items():
                yield OffsetEntry(OffsetKey(group.group_id, topic, partition), committed)

    def _current(self) -> Iterator[Entry | None]:
        """As `snapshot`, but each row with its value when the iteration reaches it, if it still exists. Yield
        None for a row that must not be rewritten now, and for a group without rows.
        """
        for group in self._table:
            partitions = group.offsets.partitions()
            has_entries = False
            for entry in _membership_entries(group):
                has_entries = True
                yield entry if group in self._table else None
            if not has_entries and not partitions:
                yield None
            for topic, index in partitions:
                committed = group.offsets.get((topic, index))
                # A marker in flight may replace the offset by one whose batch is above the boundary.
                is_ending = self._log.is_committing(group.offsets.pending_producers((topic, index)))
                if group in self._table and committed is not None and not is_ending:
                    yield OffsetEntry(OffsetKey(group.group_id, topic, index), committed)
                else:
                    yield None

    def close(self, error: ErrorCode) -> Steps[None]:
        """Answer all waiting requests and free memory, because another broker leads the partition,
        or the broker stops. No request may follow.
        """
        # Timers and requests of this shard may still run between the steps.
        self._log.close()
        self.rewrite.stop()
        for executor in self._executors.values():
            executor.close(error)
        done = 0
        for group in self.groups():
            if group.classic is not None:
                self._actions.run(group, group.classic.unload(error))
            else:
                self._executor_of(group).unload(group)
                done += len(group.membership)
            self._table.remove(group)
            done += 1 + group.offsets.rows
            if done >= _FREED_PER_STEP:
                done = 0
                yield
            while group.offsets.forget(_FREED_PER_STEP):
                yield
        assert not self._actions.waiting_count, "a request was left without an answer"

    def check_log(self) -> None:
        """Request a rewrite of the log if it became long."""
        if self.rewrite.is_due:
            self._rewrite_due()

    # --- members

    async def join(self, group_id: str, request: JoinRequest, free: Callable[[], None]) -> JoinAnswer:
        """JoinGroup; waits for the rebalance. See `GroupCoordinator.join_group` for `free`."""
        group = self._table.get(group_id)
        if group is not None and group.share is not None:
            return JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
        if request.member_id and (group is None or (group.classic is None and not group.membership)):
            return JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
        if group is not None and group.consumer is not None and group.membership:
            joined = await self.consumers.join(group, request)
            self.check_log()
            return joined
        if not self._has_room_for_member(group, request):
            return JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
        group = group or self._table.create(group_id)
        if group is None:
            return JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)
        error = self._make_classic(group)
        if error is not ErrorCode.NONE:
            return JoinAnswer(error, request.member_id)
        assert group.classic is not None
        number, answer = self._actions.open_request()
        self._actions.run(group, group.classic.join(replace(request, request=number)))
        if not answer.done():
            free()
        body = await answer
        assert isinstance(body, JoinAnswer)
        return body

    def _make_classic(self, group: Group) -> ErrorCode:
        is_classic = group.server_assigned is None
        return ErrorCode.NONE if is_classic else self._executor_of(group).make_classic(group)

    def _has_room_for_member(self, group: Group | None, request: JoinRequest) -> bool:
        classic = None if group is None else group.classic
        held = 0 if classic is None else classic.size_bytes_of(request.member_id)
        wanted = member_bytes(request.client_id, request.instance_id, request.protocols)
        return self._budget.admits(wanted - held)

    async def sync(self, group_id: str, request: SyncRequest, free: Callable[[], None]) -> SyncAnswer:
        """SyncGroup; waits until the leader's assignments are durable."""
        group, membership = self._classic(group_id)
        if group is not None and group.consumer is not None:
            return await self.consumers.sync(group, request)
        if group is None or membership is None:
            return SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
        number, answer = self._actions.open_request()
        self._actions.run(group, membership.sync(replace(request, request=number)))
        # The request of a follower is freed. The leader's is not: it contains the assignments, which the
        # memory of the group does not include before they are durable.
        if not answer.done() and not membership.is_led_by(request.claim.member_id):
            request.assignments.clear()
            free()
        self.check_log()
        body = await answer
        assert isinstance(body, SyncAnswer)
        return body

    def heartbeat(self, group_id: str, claim: MemberClaim) -> ErrorCode:
        """Heartbeat."""
        group, membership = self._classic(group_id)
        if group is not None and group.consumer is not None:
            return self.consumers.classic_heartbeat(group, claim)
        if group is None or membership is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error, instructions = membership.heartbeat(claim)
        self._actions.run(group, instructions)
        return error

    async def leave(self, group_id: str, leaving: tuple[MemberClaim, ...]) -> LeaveAnswer:
        """LeaveGroup."""
        group, membership = self._classic(group_id)
        if group is not None and group.consumer is not None:
            left = await self.consumers.leave(group, leaving)
            self.check_log()
            return left
        if group is None or membership is None:
            return LeaveAnswer(tuple((claim, ErrorCode.UNKNOWN_MEMBER_ID) for claim in leaving))
        number, answer = self._actions.open_request()
        self._actions.run(group, membership.leave(LeaveRequest(leaving, number)))
        body = await answer
        assert isinstance(body, LeaveAnswer)
        return body

    def _classic(self, group_id: str) -> tuple[Group | None, Membership | None]:
        group = self._table.get(group_id)
        return group, None if group is None else group.classic

    # --- offsets

    async def commit(
        self,
        group_id: str,
        claim: MemberClaim,
        commits: Mapping[TopicPartition, CommittedOffset],
        *,
        knows_epochs: bool = True,
    ) -> ErrorCode:
        """OffsetCommit; NONE only when the records are durable. Without commits it only checks
        whether the client may commit. `knows_epochs`: whether the request can contain a member epoch.
        """
        group = self._admit(group_id, claim, commits, knows_epochs=knows_epochs)
        if isinstance(group, ErrorCode) or not commits:
            return group if isinstance(group, ErrorCode) else ErrorCode.NONE
        entries = _entries(group_id, commits)
        group.offsets.began(commits)

        def apply(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                group.offsets.succeeded(commits)
                self._actions.recount(group)
            else:
                group.offsets.failed(commits)

        error = await self._actions.write(entries, apply)
        self.check_log()
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error is ErrorCode.MESSAGE_TOO_LARGE else error

    def _admit(
        self,
        group_id: str,
        claim: MemberClaim,
        commits: Mapping[TopicPartition, CommittedOffset],
        *,
        in_transaction: bool = False,
        knows_epochs: bool = True,
    ) -> Group | ErrorCode:
        """Return the group to which the client may commit, created if necessary, or the error."""
        group = self._table.get(group_id)
        if group is None:
            if claim.generation >= 0:
                return ErrorCode.GROUP_ID_NOT_FOUND
            group = self._table.create(group_id)
            if group is None:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if group.classic is None:
            error = refusal_of_commit(
                group, claim, commits, in_transaction=in_transaction, knows_epochs=knows_epochs
            )
        else:
            error, instructions = group.classic.commit(claim, in_transaction=in_transaction)
            self._actions.run(group, instructions)
        if error is not ErrorCode.NONE:
            return error
        growth_bytes = (
            pending_bytes(commits.values()) if in_transaction else group.offsets.growth_bytes(commits)
        )
        if not self._budget.admits(growth_bytes):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if any(self._is_gone(topic, committed) for (topic, _), committed in commits.items()):
            # The topic was deleted while the request waited, and the search may have ended already.
            self._forget_topics()
        return group

    def _forget_topics(self) -> None:
        self.has_to_forget_topics = True
        self._forget_due()

    # --- offsets in transactions

    @property
    def partition_index(self) -> int:
        """The partition of `__consumer_offsets` with these groups."""
        return self._log.partition_index

    def begin_verification(
        self, producer_id: int, producer_epoch: int, *, generation: int
    ) -> Verification | None:
        """Return the proof that the caller keeps until the transaction coordinator answers; None if the
        transaction is open here.
        """
        return self._log.begin_verification(producer_id, producer_epoch, generation=generation)

    async def commit_in_transaction(
        self,
        group_id: str,
        claim: MemberClaim,
        commits: Mapping[TopicPartition, CommittedOffset],
        producer: TransactionalProducer,
    ) -> ErrorCode:
        """TxnOffsetCommit; NONE only when the records are durable. The offsets become visible when the
        transaction commits.
        """
        group = self._admit(group_id, claim, commits, in_transaction=True)
        if isinstance(group, ErrorCode) or not commits:
            return group if isinstance(group, ErrorCode) else ErrorCode.NONE
        admitted = group
        admitted.offsets.began(commits)

        def apply(error: ErrorCode) -> None:
            admitted.offsets.failed(commits)
            if error is ErrorCode.NONE:
                for partition, committed in commits.items():
                    self._put_pending(admitted, producer.producer_id, partition, committed)
                self._actions.recount(admitted)

        error = await self._actions.write(_entries(group_id, commits), apply, producer)
        self.check_log()
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if error is ErrorCode.MESSAGE_TOO_LARGE else error

    def _put_pending(
        self, group: Group, producer_id: int, partition: TopicPartition, committed: CommittedOffset | None
    ) -> None:
        group.offsets.put_pending(producer_id, partition, committed)
        self._in_transactions.setdefault(producer_id, set()).add(group.group_id)

    def _transaction_ended(self, producer_id: int, commits: bool) -> Steps[None]:
        """Apply a durable marker. Between the steps, offsets of the transaction are visible or pending."""
        for group_id in self._in_transactions.pop(producer_id, ()):
            while (group := self._table.get(group_id)) is not None:
                count = group.offsets.end_transaction(producer_id, commits=commits, count_max=_ENDED_PER_STEP)
                self._actions.recount(group)
                self._ended_offsets += count
                if self._ended_offsets >= _ENDED_PER_STEP:
                    self._ended_offsets = 0
                    yield
                if count < _ENDED_PER_STEP:
                    break
        # A search for offsets of deleted topics that ran between two steps may await this producer, too.
        if producer_id in self.removal.awaited_producers:
            self._forget_topics()
        if not self._log.is_closed:
            self.check_log()


def _membership_entries(group: Group) -> Iterator[Entry]:
    if group.server_assigned is not None:
        yield from group.server_assigned.entries()
    elif group.durable is not None:
        yield GroupEntry(GroupKey(group.group_id), group.durable)


def _entries(group_id: str, commits: Mapping[TopicPartition, CommittedOffset]) -> list[Entry]:
    return [
        OffsetEntry(OffsetKey(group_id, topic, partition), committed)
        for (topic, partition), committed in commits.items()
    ]
