"""The streams groups of a shard: their requests, their work, and the topics that the coordinator creates
(docs/design/streams-groups.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ponor_kafka.errors import ErrorCode

from ponor_broker.coordination.ports import InternalTopicCreator
from ponor_broker.groups.consumer.topics import ImageTopics
from ponor_broker.groups.group import Group
from ponor_broker.groups.group_counters import STREAMS_TYPE
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.records import GroupEntry, GroupKey
from ponor_broker.groups.server_assigned_groups import RETRY_MS, ServerAssignedGroups, ShardParts, Work
from ponor_broker.groups.streams.configured_topology import Status, StatusCode
from ponor_broker.groups.streams.events import StreamsAnswer, StreamsHeartbeat
from ponor_broker.groups.streams.membership import StreamsMembership
from ponor_broker.groups.streams.records import RecordKind, StreamsEntry
from ponor_broker.groups.streams.topology import InternalTopic

CREATION_RETRY_MS: Final = 5_000
"""Pause before a topic that could not be created is attempted again."""
CREATIONS_MAX: Final = 20
"""Groups of one shard whose internal topics are being created. The others begin with a later heartbeat."""
_DEFAULT_FACTOR: Final = -1

_LOG = logging.getLogger(__name__)


class StreamsGroups(ServerAssignedGroups):
    """The streams groups of one shard."""

    def __init__(self, parts: ShardParts, topics: ImageTopics, creator: InternalTopicCreator) -> None:
        super().__init__(parts)
        self._of_members = parts.settings.of_streams_groups()
        self._topics = topics
        self._creator = creator
        self._creating: dict[Group, asyncio.Task[None]] = {}

    # --- heartbeats

    async def heartbeat(self, group_id: str, request: StreamsHeartbeat) -> StreamsAnswer:
        """StreamsGroupHeartbeat of valid form."""
        group = self._table.get(group_id)
        if group is not None and group.streams is not None:
            answer = self._execute(group, request)
        else:
            answer = self._begin(group_id, group, request)
        group = self._table.get(group_id)
        if group is None or group.streams is None:
            return answer
        error = await self._durable(group)
        if error is not ErrorCode.NONE:
            return _refusal(error)
        return self._create_missing(group, answer) if answer.missing else answer

    def _execute(self, group: Group, request: StreamsHeartbeat) -> StreamsAnswer:
        assert group.streams is not None
        outcome = group.streams.heartbeat(request, self._clock.wall_ms())
        assert outcome.answer is not None
        error = self._run(group, outcome)
        return outcome.answer if error is ErrorCode.NONE else _refusal(error)

    def _begin(self, group_id: str, group: Group | None, request: StreamsHeartbeat) -> StreamsAnswer:
        """Create a group, or make an empty classic group a streams group."""
        if group is None and request.member_epoch != 0:
            return _refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
        if group is not None and group.membership.state is GroupState.DEAD:
            return _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if group is not None and (request.member_epoch != 0 or group.classic is None or len(group.classic)):
            message = f"Group {group_id} is not a streams group."
            return _refusal(ErrorCode.GROUP_ID_NOT_FOUND, message)
        found = group or self._table.create(group_id)
        if found is None:
            return _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        answer = self._replace(found, request)
        if group is None and found.streams is None:
            self._table.remove(found)
        return answer

    def _replace(self, group: Group, request: StreamsHeartbeat) -> StreamsAnswer:
        classic = group.classic
        assert classic is not None
        membership = self._new_membership(group)
        outcome = membership.heartbeat(request, self._clock.wall_ms())
        assert outcome.answer is not None
        if outcome.answer.error is not ErrorCode.NONE:
            return outcome.answer
        tombstones = () if group.is_simple else (GroupEntry(GroupKey(group.group_id), None),)
        error = self._append(group, [*tombstones, *outcome.draft.entries])
        if error is not ErrorCode.NONE:
            return _refusal(error)
        self._actions.run(group, classic.unload(ErrorCode.REBALANCE_IN_PROGRESS))
        group.membership, group.durable = membership, None
        self._accepted(group, outcome)
        return outcome.answer

    def _new_membership(self, group: Group) -> StreamsMembership:
        settings = replace(self._of_members, own=partial(self._parts.configs, group.group_id))
        return StreamsMembership(group.group_id, settings, self._topics, self._table.budget.admits)

    # --- internal topics

    @property
    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _create_missing(self, group: Group, answer: StreamsAnswer) -> StreamsAnswer:
        """Start to create the missing topics, unless that is in progress or failed shortly before. Add the
        failures to the status.
        """
        membership = group.streams
        assert membership is not None
        creation = membership.creation
        has_room = len(self._creating) < CREATIONS_MAX
        if has_room and group not in self._creating and self._now_ms >= creation.retry_at_ms:
            work = self._create(group, membership, answer.missing)
            self._creating[group] = self._parts.spawn(work, "internal topics of a streams group")
        names = {topic.name for topic in answer.missing}
        failures = [f"{name} ({text})" for name, text in creation.failures.items() if name in names]
        if not failures:
            return answer
        suffix = f"; Creation failed: {', '.join(failures)}."
        statuses = tuple(
            Status(each.code, each.detail + suffix)
            if each.code is StatusCode.MISSING_INTERNAL_TOPICS
            else each
            for each in answer.statuses
        )
        return replace(answer, statuses=statuses)

    async def _create(
        self, group: Group, membership: StreamsMembership, missing: Sequence[InternalTopic]
    ) -> None:
        creation = membership.creation
        try:
            for topic in missing:
                creation.failures.pop(topic.name, None)
                try:
                    await self._creator.create(
                        topic.name,
                        partitions=topic.partitions,
                        replication_factor=topic.replication_factor or _DEFAULT_FACTOR,
                        configs=dict(topic.configs),
                    )
                except Exception as error:  # noqa: BLE001  # the next heartbeat reports it, and it is repeated
                    # Another broker may have created the topic meanwhile.
                    if self._topics.find(topic.name) is None:
                        creation.failures[topic.name] = str(error)
                        creation.retry_at_ms = self._now_ms + CREATION_RETRY_MS
                        _LOG.warning("group %s: topic %s: %s", group.group_id, topic.name, error)
        finally:
            self._creating.pop(group, None)

    # --- work in steps

    def _next_work(self, group: Group) -> Work | None:
        membership = group.streams
        assert membership is not None
        return partial(self._compute, group, membership) if membership.needs_target else None

    async def _compute(self, group: Group, membership: StreamsMembership) -> bool:
        computation = membership.begin_computation()
        result = await self._turns.run(computation.steps)
        parts = membership.installation(computation, result, self._clock.wall_ms())
        return await self._install(group, membership, parts, membership.retry_assignment(RETRY_MS))

    def _count(self, entries: Sequence[Any]) -> None:
        raised = sum(entry.key.kind is RecordKind.EPOCH for entry in entries)
        self._counters.rebalanced(STREAMS_TYPE, raised)

    # --- load and unload

    def put(self, group: Group, entry: StreamsEntry) -> None:
        """Restore one record."""
        if group.streams is None:
            group.membership = self._new_membership(group)
        membership = group.streams
        assert membership is not None
        membership.contents.put(entry)

    def close(self, error: ErrorCode) -> None:
        """Answer waiting requests, and stop the work."""
        super().close(error)
        for creation in list(self._creating.values()):
            creation.cancel()


def _refusal(error: ErrorCode, message: str | None = None) -> StreamsAnswer:
    return StreamsAnswer(error, message or error.meaning)
