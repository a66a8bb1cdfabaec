"""How offsets and groups end: deleted by an administrator, expired, or left behind by a deleted topic.

Tombstones are written; when they are durable, memory forgets what they ended. A group's offsets may be more than one batch holds; then they
end in parts, and the group itself with the last. Which offsets have expired is decided in `expiry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock
from ponor_runtime.turns import turn

from ponor_broker.groups.expiry import expired_offsets
from ponor_broker.groups.group import Group
from ponor_broker.groups.group_actions import GroupActions
from ponor_broker.groups.group_table import GroupTable
from ponor_broker.groups.membership import Membership
from ponor_broker.groups.offsets import TopicPartition
from ponor_broker.groups.offsets_log import OffsetsLog
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import CommittedOffset, Entry, GroupEntry, GroupKey, OffsetEntry, OffsetKey
from ponor_broker.groups.settings import GroupSettings

IsGone: TypeAlias = Callable[[str, CommittedOffset], bool]
"""Was the topic of this name, to which this was committed, deleted?"""
ENDED_UNDER_WAY_MAX: Final = 256
"""Groups whose tombstones may be on their way to the log at a time: most of the log's writes in flight are left to clients."""

OFFSETS_PER_STEP: Final = 250
"""Offsets of a group that are looked at, and ended, in one turn of the event loop: 5 ms."""
STEPS_UNDER_WAY_MAX: Final = 8
"""Such steps whose tombstones may be under way: one turn may hear that all of them are durable."""
Select: TypeAlias = Callable[[Sequence[TopicPartition]], Sequence[TopicPartition]]


class GroupRemoval:
    """Of one shard."""

    def __init__(
        self,
        log: OffsetsLog,
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

    async def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups: gone once the tombstones of the group and of all its offsets, those on their way included, are durable."""
        group = self._table.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        error = group.membership.delete()
        if error is not ErrorCode.NONE:
            return error
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE  # for who is cancelled between two parts
        try:
            parts = self._log.in_parts(self._tombstones(group))
            part, count = next(parts), 0
            for following in parts:
                error = self._bury_in_parts(group, (part,))
                if error is not ErrorCode.NONE:
                    return error
                part, count, error = following, count + 1, ErrorCode.COORDINATOR_NOT_AVAILABLE
                await (self._log.flushed() if count % STEPS_UNDER_WAY_MAX == 0 else turn())
            error = ErrorCode.NONE
        finally:
            if error is not ErrorCode.NONE:
                self._buried(group, error)
        return await self._actions.write(part, partial(self._buried, group))

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        """OffsetDelete: an answer for each partition, or one for the group. Nothing committed is nothing to do, and no error."""
        group = self._table.get(group_id)
        if group is None or group.membership.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.membership.state is not GroupState.EMPTY and not group.membership.is_of_consumers:
            return ErrorCode.NON_EMPTY_GROUP  # what its members read is for them to know
        topics_read = group.membership.subscribed_topics()
        in_doubt = group.membership.is_of_consumers  # whose subscriptions cannot be read
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
        error = await self._actions.write(list(_ends(group, doomed)), partial(self._ended, group, doomed))
        return answers if error is ErrorCode.NONE else error

    async def expire(self) -> int:
        """End offsets whose time is over, and groups that hold nothing any more. Called now and then; returns how many offsets."""
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
        """End what was committed to topics that are deleted. A commit on its way was allowed before the deletion: it is waited for.

        Returns:
            Whether all of it is gone for good. False: a write was refused, failed or is under way; call again later.
        """
        await self._log.flushed()
        failures, ended, is_whole = self._log.failures, 0, True
        async for group in self._table.walk(self._clock):
            doubtful = False

            def gone_among(
                partitions: Sequence[TopicPartition], group: Group = group
            ) -> Sequence[TopicPartition]:
                nonlocal doubtful
                old = [
                    partition
                    for partition in partitions
                    if (committed := group.offsets.get(partition)) is not None
                    and is_gone(partition[0], committed)
                ]
                # A commit under way may be to the topic's successor, and a tombstone behind it would end it too.
                gone = [partition for partition in old if not group.offsets.is_in_flight(partition)]
                doubtful = doubtful or len(gone) < len(old)
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

    # --- tombstones

    def _tombstones(self, group: Group) -> Iterator[Entry]:
        yield from _ends(group, group.offsets.to_bury())
        yield GroupEntry(GroupKey(group.group_id), None)

    def _end_group(self, group: Group) -> None:
        error = group.membership.delete()
        assert error is ErrorCode.NONE, "only an empty group is ended"
        *first, last = self._log.in_parts(self._tombstones(group))
        error = self._bury_in_parts(group, first)
        if error is ErrorCode.NONE:
            error = self._log.try_append(last, partial(self._buried, group))
        if error is not ErrorCode.NONE:
            self._buried(group, error)

    async def _end_in_steps(self, group: Group, select: Select) -> tuple[int, ErrorCode]:
        """End the offsets that `select` finds. It looks at some of them at a time, and these are handed to the log in the same step.

        Returns:
            How many were handed to the log, and why it refused one more.
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
        # Refused, or failed: they are still there, and the next look ends them.
        return self._bury_in_parts(group, self._log.in_parts(_ends(group, partitions)))

    def _bury_in_parts(self, group: Group, parts: Iterable[Sequence[Entry]]) -> ErrorCode:
        """Hand tombstones of offsets to the log, up to the first part that it refuses."""
        for part in parts:
            partitions = [
                (entry.key.topic, entry.key.partition) for entry in part if isinstance(entry, OffsetEntry)
            ]
            error = self._log.try_append(part, partial(self._ended, group, partitions))
            if error is not ErrorCode.NONE:
                return error
        return ErrorCode.NONE

    def _ended(self, group: Group, partitions: Sequence[TopicPartition], error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            for partition in partitions:
                group.offsets.restore(partition, None)
            self._actions.recount(group)

    def _buried(self, group: Group, error: ErrorCode) -> None:
        if group not in self._table:
            return  # the shard was closed meanwhile
        if error is ErrorCode.NONE:
            self._table.remove(group)
            return
        # It lives on as the log has it.
        group.membership = Membership(self._settings)
        restored = [] if group.durable is None else group.membership.restore(group.durable)
        self._actions.run(group, restored)


def _ends(group: Group, partitions: Iterable[TopicPartition]) -> Iterator[Entry]:
    for topic, index in partitions:
        yield OffsetEntry(OffsetKey(group.group_id, topic, index), None)
