"""Removal of offsets and groups: deleted by an administrator, expired (KIP-211, KIP-496), or of a
deleted topic.

Writes tombstones, and updates memory when they are durable. If a group's offsets exceed one batch, they are
removed in parts, and the group with the last part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock
from ponor_runtime.turns import Steps, turn

from ponor_broker.coordination.record_log import RecordLog
from ponor_broker.groups.group import Group
from ponor_broker.groups.group_actions import GroupActions
from ponor_broker.groups.group_table import GroupTable
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.offsets import TopicPartition
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.record_codec import Entry
from ponor_broker.groups.records import (
    NO_TIMESTAMP,
    CommittedOffset,
    GroupEntry,
    GroupKey,
    OffsetEntry,
    OffsetKey,
)
from ponor_broker.groups.settings import GroupSettings


def expired_offsets(
    group: Group, partitions: Iterable[TopicPartition], *, now_ms: int, retention_ms: int
) -> tuple[TopicPartition, ...]:
    """Return the partitions whose commits have expired, except those with a commit in flight.

        group                                  retention of an offset starts with
        simple (never had members)             its commit
        empty                                  the later of its commit and the last member's leaving
        stable, of consumers, topic not read   its commit
        consumer group, topic not read         its commit
        anything else                          never expires

    An explicit retention time (OffsetCommit 2 to 4) replaces the configured one, in the first four
    rows. In Kafka 4.3.1, the retention in an empty group starts when the last member leaves, even if an
    offset was committed later. Offsets that an administrator resets in an old group can then expire within
    minutes. Here, a commit always has its whole retention time. As in Kafka, the wall clock is used, because
    retention must span restarts. If this clock jumps forward by an hour, offsets expire an hour early; if it
    jumps back, they expire later.
    """
    membership = group.membership
    read_topics: frozenset[str] = frozenset()
    not_before_ms = NO_TIMESTAMP
    if group.server_assigned is not None:
        # As in Kafka, also without members: their records have no time at which the last member left.
        read_topics = group.server_assigned.subscribed_topics() or frozenset()
    elif membership.state is GroupState.EMPTY:
        if not group.is_simple:
            not_before_ms = group.quiet_since_ms
    elif membership.state is GroupState.STABLE:
        topics = membership.subscribed_topics()
        if topics is None:
            return ()
        read_topics = topics
    else:
        return ()
    return tuple(
        partition
        for partition in partitions
        if partition[0] not in read_topics
        and not group.offsets.is_in_flight(partition)
        and (committed := group.offsets.get(partition)) is not None
        and _is_over(committed, now_ms=now_ms, not_before_ms=not_before_ms, retention_ms=retention_ms)
    )


def _is_over(committed: CommittedOffset, *, now_ms: int, not_before_ms: int, retention_ms: int) -> bool:
    if committed.expire_timestamp_ms >= 0:
        return committed.expire_timestamp_ms <= now_ms
    return max(committed.commit_timestamp_ms, not_before_ms) + retention_ms <= now_ms


IsGone: TypeAlias = Callable[[str, CommittedOffset], bool]
"""Returns whether the topic with this name, for which this offset was committed, was deleted."""
ENDED_UNDER_WAY_MAX: Final = 256
"""Groups whose tombstones may be in flight at a time: most of the log's writes in flight are
reserved for clients."""

OFFSETS_PER_STEP: Final = 250
"""Offsets of a group that are checked and removed in one event-loop turn: about 5 ms."""
PENDING_PER_STEP: Final = 1_000
"""Pending offsets of a group that are checked in one event-loop turn."""
REMOVED_PER_STEP: Final = 1_000
"""Pending offsets that are removed in one event-loop turn when their tombstones are durable."""
STEPS_UNDER_WAY_MAX: Final = 8
"""Steps of `OFFSETS_PER_STEP` whose tombstones may be in flight at a time. All may complete in one turn."""
Select: TypeAlias = Callable[[Sequence[TopicPartition]], Sequence[TopicPartition]]


class GroupRemoval:
    """The removals of one shard."""

    def __init__(
        self,
        log: RecordLog[Entry],
        table: GroupTable,
        actions: GroupActions,
        *,
        settings: GroupSettings,
        clock: Clock,
    ) -> None:
        self._log = log
        self._table = table
        self._actions = actions
        self._settings = settings
        self._clock = clock
        self.awaited_producers: set[int] = set()
        """Producers whose open transactions have pending offsets of deleted topics, or may replace such an
        offset.
        """
        self._removed = 0
        """Pending offsets that were removed since the last step. Many tombstones may become durable at a
        time."""

    async def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups: done when the tombstones of the group and of all its offsets, including
        commits in flight, are durable.
        """
        group = self._table.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        error = group.membership.delete()
        if error is not ErrorCode.NONE:
            return error
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE  # the outcome if this call is cancelled between two parts
        try:
            parts = self._log.in_parts(self._tombstones(group))
            part, count = next(parts), 0
            for following in parts:
                error = self._write_tombstones_in_parts(group, (part,))
                if error is not ErrorCode.NONE:
                    return error
                part, count, error = following, count + 1, ErrorCode.COORDINATOR_NOT_AVAILABLE
                await (self._log.flushed() if count % STEPS_UNDER_WAY_MAX == 0 else turn())
            error = ErrorCode.NONE
        finally:
            if error is not ErrorCode.NONE:
                self._buried(group, error)
        return await self._actions.write(part, partial(self._buried, group), steps=partial(self._bury, group))

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        """OffsetDelete: one result per partition, or one error for the group. A partition without a
        commit is no error.
        """
        group = self._table.get(group_id)
        if group is None or group.share is not None or group.membership.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.membership.state is not GroupState.EMPTY and not group.membership.is_of_consumers:
            return ErrorCode.NON_EMPTY_GROUP  # the topics that such members read are unknown
        topics_read = group.membership.subscribed_topics()
        # without readable subscriptions every topic counts as read
        in_doubt = group.membership.is_of_consumers
        answers: dict[TopicPartition, ErrorCode] = {}
        for topic, index in partitions:
            is_read = in_doubt if topics_read is None else topic in topics_read
            answers[topic, index] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read else ErrorCode.NONE
        doomed = [
            partition
            for partition, answer in answers.items()
            if answer is ErrorCode.NONE
            and (group.offsets.get(partition) is not None or group.offsets.is_in_flight(partition))
        ]
        if not doomed:
            return answers
        steps = partial(self._ended, group, doomed)
        error = await self._actions.write(list(_ends(group, doomed)), lambda _: None, steps=steps)
        return answers if error is ErrorCode.NONE else error

    async def expire(self) -> int:
        """Remove expired offsets, and groups that become unused. Called periodically; returns the
        number of offsets.
        """
        count = ended = 0
        async for group in self._table.walk(self._clock):
            expired_among = partial(self._expired_among, group)
            if len(group.offsets) > OFFSETS_PER_STEP:
                many, _ = await self._end_in_steps(group, expired_among)
                count += many
                if many:
                    await self._log.flushed()
                    if group in self._table and group.is_unused:
                        self._end_group(group)
                continue
            expired = expired_among(group.offsets.partitions())
            count += len(expired)
            if group.membership.is_unused and group.offsets.is_held_only_by(expired):
                self._end_group(group)
            elif expired:
                self._end_offsets(group, expired)
            else:
                continue
            ended += 1
            if ended % ENDED_UNDER_WAY_MAX == 0:
                await self._log.flushed()
        return count

    def _expired_among(self, group: Group, partitions: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        return expired_offsets(
            group,
            partitions,
            now_ms=self._clock.wall_ms(),
            retention_ms=self._settings.offsets_retention_ms,
        )

    async def forget_deleted_topics(self, is_gone: IsGone) -> bool:
        """Remove offsets of deleted topics. First wait for commits in flight, which may have been accepted
        before the deletion.

        Returns:
            Whether all these offsets are removed durably. False: a write was refused, failed or is in flight;
                call again later. Offsets that are pending in a transaction, or that it may replace, remain:
                call again when the transaction of one of `awaited_producers` has ended.
        """
        await self._log.flushed()
        failures, ended, is_whole = self._log.failures, 0, True
        self.awaited_producers.clear()
        async for group in self._table.walk(self._clock):
            doubtful = False
            await self._note_awaited(group, is_gone)
            if group not in self._table:
                continue

            def gone_among(
                partitions: Sequence[TopicPartition], group: Group = group
            ) -> Sequence[TopicPartition]:
                nonlocal doubtful
                gone: list[TopicPartition] = []
                for partition in partitions:
                    committed = group.offsets.get(partition)
                    if committed is None or not is_gone(partition[0], committed):
                        continue
                    # A commit in flight may be for a new topic of the same name, and a tombstone after
                    # it would remove it too.
                    if not group.offsets.is_in_flight(partition):
                        gone.append(partition)
                    elif producers := group.offsets.pending_producers(partition):
                        self.awaited_producers.add(next(iter(producers)))
                    else:
                        doubtful = True
                return gone

            count, error = await self._end_in_steps(group, gone_among)
            if error is not ErrorCode.NONE:
                return False
            is_whole = is_whole and not doubtful
            if not count:
                continue
            ended += 1
            if ended % ENDED_UNDER_WAY_MAX == 0:
                await self._log.flushed()
        await self._log.flushed()
        return is_whole and self._log.failures == failures

    async def _note_awaited(self, group: Group, is_gone: IsGone) -> None:
        """Note the producers with pending offsets of deleted topics, in bounded event-loop turns."""
        checked = 0
        for partition in group.offsets.pending_partitions():
            for producer_id, offset in list(group.offsets.pending_of(partition)):
                if offset is not None and is_gone(partition[0], offset):
                    self.awaited_producers.add(producer_id)
                checked += 1
                if checked % PENDING_PER_STEP == 0:
                    await turn()

    # --- tombstones

    def _tombstones(self, group: Group) -> Iterator[Entry]:
        yield from _ends(group, group.offsets.to_tombstone())
        if group.server_assigned is None:
            yield GroupEntry(GroupKey(group.group_id), None)
        else:
            yield from group.server_assigned.tombstones()

    def _end_group(self, group: Group) -> None:
        error = group.membership.delete()
        assert error is ErrorCode.NONE, "only an empty group may be removed"
        *first, last = self._log.in_parts(self._tombstones(group))
        error = self._write_tombstones_in_parts(group, first)
        if error is ErrorCode.NONE:
            steps = partial(self._bury, group)
            error = self._log.try_append(last, partial(self._buried, group), apply=steps)
        if error is not ErrorCode.NONE:
            self._buried(group, error)

    async def _end_in_steps(self, group: Group, select: Select) -> tuple[int, ErrorCode]:
        """Remove the offsets that `select` returns, step by step; each step selects and appends
        without an await.

        Returns:
            The number of appended tombstones, and the error with which the log refused further ones.
        """
        partitions, count, writes = group.offsets.partitions(), 0, 0
        for first in range(0, len(partitions), OFFSETS_PER_STEP):
            if first:
                await turn()
                if group not in self._table:
                    break
            found = select(partitions[first : first + OFFSETS_PER_STEP])
            if not found:
                continue
            error = self._end_offsets(group, found)
            if error is not ErrorCode.NONE:
                return count, error
            count, writes = count + len(found), writes + 1
            if writes % STEPS_UNDER_WAY_MAX == 0:
                await self._log.flushed()
        return count, ErrorCode.NONE

    def _end_offsets(self, group: Group, partitions: Sequence[TopicPartition]) -> ErrorCode:
        # If the write is refused or fails, the offsets still exist, and the next check removes them.
        return self._write_tombstones_in_parts(group, self._log.in_parts(_ends(group, partitions)))

    def _write_tombstones_in_parts(self, group: Group, parts: Iterable[Sequence[Entry]]) -> ErrorCode:
        """Append tombstones of offsets, up to the first part that the log refuses."""
        for part in parts:
            partitions = [
                (entry.key.topic, entry.key.partition) for entry in part if isinstance(entry, OffsetEntry)
            ]
            steps = partial(self._ended, group, partitions)
            error = self._log.try_append(part, lambda _: None, apply=steps)
            if error is not ErrorCode.NONE:
                return error
        return ErrorCode.NONE

    def _ended(self, group: Group, partitions: Sequence[TopicPartition]) -> Steps[None]:
        """Remove offsets whose tombstones are durable."""
        for partition in partitions:
            while count := group.offsets.remove_pending(partition, REMOVED_PER_STEP):
                yield from self._count_removed(count)
            group.offsets.restore(partition, None)
        self._actions.recount(group)

    def _bury(self, group: Group) -> Steps[None]:
        """Remove a group whose tombstones are durable, then free its offsets."""
        if group in self._table:  # otherwise the shard was closed meanwhile
            self._table.remove(group)
        while count := min(group.offsets.rows, REMOVED_PER_STEP):
            group.offsets.forget(count)
            yield from self._count_removed(count)

    def _count_removed(self, count: int) -> Steps[None]:
        self._removed += count
        if self._removed >= REMOVED_PER_STEP:
            self._removed = 0
            yield

    def _buried(self, group: Group, error: ErrorCode) -> None:
        if error is ErrorCode.NONE or group not in self._table:
            return
        # The group continues with the state in the log.
        if group.server_assigned is not None:
            group.server_assigned.revive()
            return
        membership = group.membership = Membership(self._settings)
        self._actions.run(group, [] if group.durable is None else membership.restore(group.durable))


def _ends(group: Group, partitions: Iterable[TopicPartition]) -> Iterator[Entry]:
    for topic, index in partitions:
        yield OffsetEntry(OffsetKey(group.group_id, topic, index), None)
