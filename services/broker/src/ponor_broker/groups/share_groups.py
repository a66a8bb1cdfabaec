"""The share groups of a shard: their requests, and the delivery states of their partitions.

A state exists from the first subscription to its topic until the topic, the group or its offsets are deleted.
Each step is a record before the persister is called, and after its answer. A step that fails is repeated by
the next heartbeat or request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import UUID

from ponor_kafka.errors import ErrorCode

from ponor_broker.coordination.share_persister import SharePartitionKey, SharePersister
from ponor_broker.groups.consumer.events import HeartbeatAnswer, HeartbeatRequest
from ponor_broker.groups.consumer.records import ConsumerEntry, EpochEntry
from ponor_broker.groups.consumer.topics import ImageTopics
from ponor_broker.groups.group import Group
from ponor_broker.groups.group_counters import SHARE_TYPE
from ponor_broker.groups.rebalance import GroupState
from ponor_broker.groups.record_codec import Entry
from ponor_broker.groups.server_assigned_groups import RETRY_MS, ServerAssignedGroups, ShardParts, Work
from ponor_broker.groups.share.membership import ShareMembership, stored
from ponor_broker.groups.share.records import ShareGroupEntry
from ponor_broker.groups.share.state_partitions import (
    StatePartitions,
    StatesById,
    TopicStates,
    united,
    without,
)
from ponor_broker.requests.bounded_gather import bounded_gather

STATES_TOGETHER_MAX: Final = 64
"""Calls of the persister that one request makes at a time."""
UNINITIALIZED: Final = -1
"""Start offset of a state whose group begins at its `share.auto.offset.reset`."""

TopicPartitionId: TypeAlias = tuple[bytes, int]
StartOffsets: TypeAlias = Mapping[TopicPartitionId, int]
Results: TypeAlias = dict[TopicPartitionId, ErrorCode]


class ShareGroups(ServerAssignedGroups):
    """The share groups of one shard."""

    def __init__(self, parts: ShardParts, topics: ImageTopics, persister: SharePersister | None) -> None:
        """Without a persister, groups are only restored and kept."""
        super().__init__(parts)
        self._of_members = parts.settings.of_share_groups()
        self._topics = topics
        self._persister = persister
        self._initializing: dict[Group, set[TopicPartitionId]] = {}
        """Partitions for which a heartbeat waits for the persister."""
        self._creating: Counter[Group] = Counter()
        """Requests that create states, by group. States are not deleted meanwhile, nor created during a
        deletion: the persister may process the calls in any order.
        """
        self._deleting: set[Group] = set()

    # --- heartbeats

    async def heartbeat(self, group_id: str, request: HeartbeatRequest) -> HeartbeatAnswer:
        """ShareGroupHeartbeat of valid form. The first subscription to a topic waits for its states."""
        known = self._table.get(group_id)
        group = known or self._created(group_id, request)
        if isinstance(group, HeartbeatAnswer):
            return group
        membership = group.share
        if membership is None:
            return _refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        if group in self._deleting:
            return _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "States of the group are being deleted.")
        outcome = membership.heartbeat(request, self._clock.wall_ms())
        answer = outcome.answer
        assert answer is not None
        error = self._run(group, outcome)
        if known is None and not membership.contents.members:
            self._table.remove(group)
            return answer if error is ErrorCode.NONE else _refusal(error)
        if error is ErrorCode.NONE:
            error = await self._durable(group)
        if error is ErrorCode.NONE and answer.error is ErrorCode.NONE and answer.member_epoch >= 0:
            error = await self._initialize(group, membership)
        return answer if error is ErrorCode.NONE else _refusal(error)

    def _created(self, group_id: str, request: HeartbeatRequest) -> Group | HeartbeatAnswer:
        if request.member_epoch != 0:
            what = "Share group" if request.member_epoch > 0 else "Group"
            return _refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"{what} {group_id} not found.")
        group = self._create(group_id)
        return _refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE) if group is None else group

    def _create(self, group_id: str) -> Group | None:
        group = self._table.create(group_id)
        if group is not None:
            group.membership = self._new_membership(group)
            self._actions.recount(group)
        return group

    def _new_membership(self, group: Group) -> ShareMembership:
        configs = partial(self._parts.configs, group.group_id)
        settings = replace(self._of_members, configs=configs)
        return ShareMembership(group.group_id, settings, self._topics, self._table.budget.admits)

    # --- execution

    def _count(self, entries: Sequence[ConsumerEntry]) -> None:
        raised = sum(isinstance(entry, EpochEntry) for entry in entries)
        self._counters.rebalanced(SHARE_TYPE, raised)

    def _stored(self, entries: Sequence[ConsumerEntry]) -> Sequence[Entry]:
        return [stored(entry) for entry in entries]

    def _next_work(self, group: Group) -> Work | None:
        membership = group.share
        assert membership is not None
        return partial(self._compute, group, membership) if membership.needs_target else None

    async def _compute(self, group: Group, membership: ShareMembership) -> bool:
        computation = membership.begin_computation()
        result = await self._turns.run(computation.steps)
        parts = membership.installation(computation, result, self._clock.wall_ms())
        return await self._install(group, membership, parts, membership.retry_assignment(RETRY_MS))

    # --- creation of states

    async def _initialize(self, group: Group, membership: ShareMembership) -> ErrorCode:
        """Create the states of subscribed partitions that have none."""
        own = self._initializing.setdefault(group, set())
        missing = without(membership.uninitialized(), _by_topic(own))
        if not missing:
            return ErrorCode.NONE
        partitions = set(_partitions_of(missing))
        own |= partitions
        try:
            results = await self._create_states(group, missing, {})
        finally:
            own -= partitions
            if not own:
                self._initializing.pop(group, None)
        if isinstance(results, ErrorCode):
            return results
        return next((error for error in results.values() if error is not ErrorCode.NONE), ErrorCode.NONE)

    async def _create_states(
        self, group: Group, states: StatesById, starts: StartOffsets
    ) -> Results | ErrorCode:
        """Create states at the group epoch; those without an entry in `starts` have no start offset."""
        if group in self._deleting:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._creating[group] += 1
        try:
            return await self._initialize_each(group, states, starts)
        finally:
            self._creating[group] -= 1
            if not self._creating[group]:
                del self._creating[group]

    async def _initialize_each(
        self, group: Group, states: StatesById, starts: StartOffsets
    ) -> Results | ErrorCode:
        membership, persister = group.share, self._persister
        assert membership is not None
        assert persister is not None, "requests of share groups are served only with a persister"
        epoch = membership.contents.group_epoch
        error = await self._change_states(group, membership.states.begun(states))
        if error is not ErrorCode.NONE:
            return error

        def create(key: SharePartitionKey) -> Coroutine[Any, Any, ErrorCode]:
            start = starts.get((key.topic_id.bytes, key.partition), UNINITIALIZED)
            return persister.initialize(key, epoch, start)

        results = await self._of_each(group, states, create)
        if not self._is_current(group, membership):
            return ErrorCode.NOT_COORDINATOR
        failed = _by_topic(one for one, error in results.items() if error is not ErrorCode.NONE)
        error = await self._change_states(group, membership.states.ended(without(states, failed), failed))
        return results if error is ErrorCode.NONE else error

    async def _of_each(
        self,
        group: Group,
        states: StatesById,
        call: Callable[[SharePartitionKey], Coroutine[Any, Any, ErrorCode]],
    ) -> Results:
        partitions = list(_partitions_of(states))
        keys = (SharePartitionKey(group.group_id, UUID(bytes=each), index) for each, index in partitions)
        errors = await bounded_gather(map(call, keys), together_max=STATES_TOGETHER_MAX)
        return dict(zip(partitions, errors, strict=True))

    def _is_current(self, group: Group, membership: ShareMembership) -> bool:
        return group in self._table and group.membership is membership and not self._parts.log.is_closed

    async def _change_states(self, group: Group, states: StatePartitions) -> ErrorCode:
        """Note the partitions with states, durably."""
        membership = group.share
        assert membership is not None
        before = membership.states
        if states == before:
            return ErrorCode.NONE
        entry = membership.change_states(states)
        error = self._append(group, [entry])
        if error is not ErrorCode.NONE:
            membership.change_states(before)
            return error
        self._actions.recount(group)
        return await self._durable(group)

    # --- deletion of states

    async def forget_states(self, group_id: str) -> ErrorCode:
        """Delete all states of a share group without members, before the group is deleted."""
        named = self._table.get(group_id)
        if named is None or named.share is None:
            return ErrorCode.NONE
        found = self._empty_group(group_id)
        if isinstance(found, ErrorCode):
            return found
        group, membership = found
        states = united(membership.states.known, self._whole_topics(membership.states.deleting))
        names = {topic_id: each.name for topic_id, each in states.items()}
        if not states:
            return ErrorCode.NONE
        results = await self._delete_states(group, membership, states, names)
        if isinstance(results, ErrorCode):
            return results
        return next((error for error in results.values() if error is not ErrorCode.NONE), ErrorCode.NONE)

    async def _delete_states(
        self, group: Group, membership: ShareMembership, states: StatesById, names: Mapping[bytes, str]
    ) -> Results | ErrorCode:
        """Delete the states of whole topics. They remain in `deleting`."""
        assert self._persister is not None
        if group in self._deleting or group in self._creating:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._deleting.add(group)
        try:
            error = await self._change_states(group, membership.states.dropping(names))
            if error is not ErrorCode.NONE:
                return error
            return await self._of_each(group, states, self._persister.delete)
        finally:
            self._deleting.discard(group)

    def _whole_topics(self, names: Mapping[bytes, str]) -> dict[bytes, TopicStates]:
        """Return all partitions of those topics that exist."""
        found: dict[bytes, TopicStates] = {}
        for topic_id, name in names.items():
            topic = self._topics.find(name)
            if topic is not None and topic.topic_id == topic_id:
                found[topic_id] = TopicStates(name, frozenset(range(topic.partitions)))
        return found

    async def forget_deleted_topics(self) -> bool:
        """Delete the states of deleted topics; return False if this must be repeated."""
        is_whole = True
        async for group in self._table.walk(self._clock):
            membership = group.share
            if membership is None or self._persister is None:
                continue
            states = membership.states
            ids = {*states.known, *states.deleting}
            gone = {topic_id for topic_id in ids if self._topics.name_of(topic_id) is None}
            if gone:
                is_whole &= await self._forget_topics(group, membership, gone)
        return is_whole

    async def _forget_topics(self, group: Group, membership: ShareMembership, gone: set[bytes]) -> bool:
        assert self._persister is not None
        states = {topic_id: each for topic_id, each in membership.states.known.items() if topic_id in gone}
        results = await self._of_each(group, states, self._persister.delete)
        failed = {topic_id for (topic_id, _), error in results.items() if error is not ErrorCode.NONE}
        if not self._is_current(group, membership):
            return True
        error = await self._change_states(group, membership.states.dropped(gone - failed))
        return error is ErrorCode.NONE and not failed

    # --- offsets

    def initialized(self, group_id: str) -> dict[bytes, frozenset[int]]:
        """Return the partitions with offsets, by topic id; none if the group does not exist."""
        group = self._table.get(group_id)
        states = {} if group is None or group.share is None else group.share.states.initialized
        return {topic_id: each.partitions for topic_id, each in states.items()}

    async def alter_offsets(
        self, group_id: str, states: StatesById, starts: StartOffsets
    ) -> Results | ErrorCode:
        """Replace states of a group without members, which is created if it does not exist. The group epoch
        rises, and with it the state epoch: a leader with the former state is fenced.
        """
        is_new = self._table.get(group_id) is None
        if is_new and self._create(group_id) is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        found = self._empty_group(group_id)
        if isinstance(found, ErrorCode):
            return found
        group, membership = found
        error = self._run(group, membership.raise_epoch())
        if error is not ErrorCode.NONE:
            if is_new:
                self._table.remove(group)
            return error
        # If a crash reverted the epoch after the states have it, the next reset would have the same epoch
        # and change nothing.
        error = await self._durable(group)
        if error is not ErrorCode.NONE:
            return error
        found = self._empty_group(group_id)  # a member may have joined meanwhile
        return found if isinstance(found, ErrorCode) else await self._create_states(found[0], states, starts)

    async def delete_offsets(self, group_id: str, names: Sequence[str]) -> dict[str, ErrorCode] | ErrorCode:
        """Delete the states of whole topics of a group without members; a topic without states gets
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        found = self._empty_group(group_id)
        if isinstance(found, ErrorCode):
            return found
        group, membership = found
        errors = dict.fromkeys(names, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        chosen: dict[bytes, TopicStates] = {}
        for name in names:
            topic = self._topics.find(name)
            topic_id = b"" if topic is None else topic.topic_id
            if topic_id in membership.states.initialized:
                chosen[topic_id] = TopicStates(name, membership.states.initialized[topic_id].partitions)
            elif topic_id in membership.states.deleting:
                chosen |= self._whole_topics({topic_id: name})
        if not chosen:
            return errors
        ids = {topic_id: each.name for topic_id, each in chosen.items()}
        results = await self._delete_states(group, membership, chosen, ids)
        if isinstance(results, ErrorCode):
            return results
        errors.update(dict.fromkeys(ids.values(), ErrorCode.NONE))
        for (topic_id, _), error in results.items():
            if error is not ErrorCode.NONE:
                errors[ids[topic_id]] = error
        done = [topic_id for topic_id, name in ids.items() if errors[name] is ErrorCode.NONE]
        if not self._is_current(group, membership):
            return ErrorCode.NOT_COORDINATOR
        error = await self._change_states(group, membership.states.dropped(done))
        return errors if error is ErrorCode.NONE else error

    def _empty_group(self, group_id: str) -> tuple[Group, ShareMembership] | ErrorCode:
        group = self._table.get(group_id)
        membership = None if group is None else group.share
        if group is None or membership is None or membership.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return (group, membership) if not membership else ErrorCode.NON_EMPTY_GROUP

    # --- load

    def put(self, group: Group, entry: ShareGroupEntry) -> None:
        """Restore one record."""
        if group.share is None:
            group.membership = self._new_membership(group)
        membership = group.share
        assert membership is not None
        membership.put(entry)


def _refusal(error: ErrorCode, message: str | None = None) -> HeartbeatAnswer:
    return HeartbeatAnswer(error, message or error.meaning)


def _partitions_of(states: StatesById) -> Iterable[TopicPartitionId]:
    return ((topic_id, index) for topic_id, each in states.items() for index in sorted(each.partitions))


def _by_topic(partitions: Iterable[TopicPartitionId]) -> dict[bytes, TopicStates]:
    found: dict[bytes, set[int]] = {}
    for topic_id, index in partitions:
        found.setdefault(topic_id, set()).add(index)
    return {topic_id: TopicStates("", frozenset(indexes)) for topic_id, indexes in found.items()}
