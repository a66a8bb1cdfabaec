"""How offsets and groups end: deleted by an administrator, expired, or left behind by a deleted topic.

What lives here: tombstones, and what memory forgets when they are durable. A group's offsets may be more than one batch holds; then they
end in parts, and the group itself with the last. Which offsets have expired is decided in `expiry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

from ponor_kafka.errors import ErrorCode
from ponor_runtime.clock import Clock

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
        *first, last = self._log.in_parts(self._tombstones(group))
        error = self._bury_in_parts(group, first)
        if error is not ErrorCode.NONE:
            self._buried(group, error)
            return error
        return await self._actions.write(last, partial(self._buried, group))

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
        error = await self._actions.write(_ends(group, doomed), partial(self._ended, group, doomed))
        return answers if error is ErrorCode.NONE else error

    async def expire(self) -> int:
        """End offsets whose time is over, and groups that hold nothing any more. Called now and then; returns how many offsets."""
        count = ended = 0
        async for group in self._table.walk(self._clock):
            expired = expired_offsets(
                group, now_ms=self._clock.wall_ms(), retention_ms=self._settings.offsets_retention_ms
            )
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

    async def forget_deleted_topics(self, is_gone: IsGone) -> bool:
        """End what was committed to topics that are deleted. A commit on its way was allowed before the deletion: it is waited for.

        Returns:
            Whether all of it is gone for good. False: a write was refused, failed or is under way; call again later.
        """
        await self._log.flushed()
        failures, ended, is_whole = self._log.failures, 0, True
        async for group in self._table.walk(self._clock):
            old = [
                partition
                for partition, committed in group.offsets.items()
                if is_gone(partition[0], committed)
            ]
            # A commit under way may be to the topic's successor, and a tombstone behind it would end it too.
            gone = [partition for partition in old if not group.offsets.is_in_flight(partition)]
            is_whole = is_whole and len(gone) == len(old)
            if not gone:
                continue
            if self._end_offsets(group, gone) is not ErrorCode.NONE:
                return False
            ended += 1
            if ended % ENDED_UNDER_WAY_MAX == 0:
                await self._log.flushed()
        await self._log.flushed()
        return is_whole and self._log.failures == failures

    # --- tombstones

    def _tombstones(self, group: Group) -> list[Entry]:
        return [*_ends(group, group.offsets.to_bury()), GroupEntry(GroupKey(group.group_id), None)]

    def _end_group(self, group: Group) -> None:
        error = group.membership.delete()
        assert error is ErrorCode.NONE, "only an empty group is ended"
        *first, last = self._log.in_parts(self._tombstones(group))
        error = self._bury_in_parts(group, first)
        if error is ErrorCode.NONE:
            error = self._log.try_append(last, partial(self._buried, group))
        if error is not ErrorCode.NONE:
            self._buried(group, error)

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


def _ends(group: Group, partitions: Iterable[TopicPartition]) -> list[Entry]:
    return [OffsetEntry(OffsetKey(group.group_id, topic, index), None) for topic, index in partitions]
