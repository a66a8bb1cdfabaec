"""The state of a streams group: exactly what its records contain, and indexes of it.

`put` is the only way to change it, for events as for a load, so a load restores the state before. The order
in which a load puts the newest record of each key does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from ponor_broker.groups.consumer.records import TargetEpoch
from ponor_broker.groups.streams.assignment import (
    NEW_MEMBER,
    NO_TASKS,
    CurrentAssignment,
    MemberState,
    TaskId,
    Tasks,
)
from ponor_broker.groups.streams.member import StreamsMember
from ponor_broker.groups.streams.records import (
    GroupEpoch,
    RecordKind,
    StreamsEntry,
    StreamsKey,
    StreamsValue,
)
from ponor_broker.groups.streams.topology import Topology

TARGET_TASK_BYTES: Final = 150
"""Memory of a task in a target, without its later entry in a current assignment."""
CURRENT_TASK_BYTES: Final = 400
"""Memory of a task in a current assignment, with its entry in the index of holders."""
_NO_EPOCH: Final = GroupEpoch(1)
_NO_TARGET: Final = TargetEpoch(1)
"""A new group has an empty target at epoch 1, as in Kafka: an epoch of 0 would make members join again."""


class StreamsState:
    """The state of one group. Callers read the attributes, and change nothing except by `put`."""

    def __init__(self) -> None:
        self.epoch: GroupEpoch | None = None
        self.target_epoch: TargetEpoch | None = None
        self.topology: Topology | None = None
        self.members: dict[str, StreamsMember] = {}
        self.targets: dict[str, Tasks] = {}
        self.currents: dict[str, CurrentAssignment] = {}
        self._other_bytes = 0
        self._in_targets = 0
        """Number of tasks in all targets."""
        self._in_currents = 0
        """Number of tasks in all current assignments."""
        self._active: dict[TaskId, str] = {}
        """The member that executes a task, or has to revoke it."""
        self._standby: dict[TaskId, set[str]] = {}
        """The members that restore the state of a task, or have to revoke it."""
        self._stable_at: Counter[int] = Counter()
        """Number of current assignments in state STABLE, by epoch."""

    @property
    def size_bytes(self) -> int:
        """Memory of the state. A target reserves the memory of the current assignments that follow it, so a
        member that continues towards its target does not need more memory.
        """
        reserved = max(self._in_targets, self._in_currents)
        return self._other_bytes + TARGET_TASK_BYTES * self._in_targets + CURRENT_TASK_BYTES * reserved

    @property
    def group(self) -> GroupEpoch:
        """The group epoch and what it was raised for."""
        return self.epoch or _NO_EPOCH

    @property
    def assigned_epoch(self) -> int:
        """The group epoch for which the target was computed."""
        return (self.target_epoch or _NO_TARGET).epoch

    @property
    def is_validated(self) -> bool:
        """Whether all topics of the topology exist, with correct numbers of partitions."""
        return self.topology is not None and self.topology.epoch == self.group.validated_epoch

    @property
    def all_reached_target(self) -> bool:
        """Whether every member has its target."""
        return self._stable_at[self.assigned_epoch] == len(self.members)

    def target_of(self, member_id: str) -> Tasks:
        """Return the target of a member."""
        return self.targets.get(member_id, NO_TASKS)

    def current_of(self, member_id: str) -> CurrentAssignment:
        """Return the current assignment of a member."""
        return self.currents.get(member_id, NEW_MEMBER)

    def executor(self, task: TaskId) -> str | None:
        """Return the member that executes a task, or has to revoke it."""
        return self._active.get(task)

    def is_in_process(self, task: TaskId, member_id: str) -> bool:
        """Return whether another member of the member's process has a task, or has to revoke it: two members
        of a process cannot open one state directory.
        """
        executor, copiers = self._active.get(task), self._standby.get(task)
        if executor in {None, member_id} and copiers is None:
            return False  # the usual case: a member may get thousands of tasks in one turn of the event loop
        process_id = self.members[member_id].process_id
        holders = {*(copiers or ()), executor or member_id} - {member_id}
        others = map(self.members.get, holders)
        return any(other is not None and other.process_id == process_id for other in others)

    def put(self, entry: StreamsEntry) -> StreamsEntry:
        """Apply a record; return the record that restores the value before."""
        key, value = entry.key, entry.value
        before: StreamsValue | None
        match key.kind:
            case RecordKind.EPOCH:
                assert value is None or isinstance(value, GroupEpoch)
                before, self.epoch = self.epoch, value
            case RecordKind.TARGET_EPOCH:
                assert value is None or isinstance(value, TargetEpoch)
                before, self.target_epoch = self.target_epoch, value
            case RecordKind.TOPOLOGY:
                assert value is None or isinstance(value, Topology)
                before = self._put_topology(value)
            case RecordKind.MEMBER:
                assert value is None or isinstance(value, StreamsMember)
                before = self._put_member(key.member_id, value)
            case RecordKind.TARGET:
                assert value is None or isinstance(value, Tasks)
                before = self._put_target(key.member_id, value)
            case RecordKind.CURRENT:
                assert value is None or isinstance(value, CurrentAssignment)
                before = self._put_current(key.member_id, value)
        return StreamsEntry(key, before)

    def _put_topology(self, topology: Topology | None) -> Topology | None:
        before, self.topology = self.topology, topology
        self._other_bytes += _size_of(topology) - _size_of(before)
        return before

    def _put_member(self, member_id: str, member: StreamsMember | None) -> StreamsMember | None:
        before = self.members.get(member_id)
        self._other_bytes += _size_of(member) - _size_of(before)
        if member is None:
            self.members.pop(member_id, None)
        else:
            self.members[member_id] = member
        return before

    def _put_target(self, member_id: str, target: Tasks | None) -> Tasks | None:
        before = self.targets.get(member_id)
        self._in_targets += len(target or NO_TASKS) - len(before or NO_TASKS)
        if target is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = target
        return before

    def _put_current(self, member_id: str, current: CurrentAssignment | None) -> CurrentAssignment | None:
        before = self.currents.pop(member_id, None)
        if before is not None:
            self._release(member_id, before.held)
            if before.state is MemberState.STABLE:
                self._count_stable(before.epoch, -1)
        if current is not None:
            self.currents[member_id] = current
            self._hold(member_id, current.held)
            if current.state is MemberState.STABLE:
                self._count_stable(current.epoch, 1)
        return before

    def _count_stable(self, epoch: int, sign: int) -> None:
        self._stable_at[epoch] += sign
        if not self._stable_at[epoch]:
            del self._stable_at[epoch]

    def _hold(self, member_id: str, held: Tasks) -> None:
        self._in_currents += len(held)
        self._active.update(dict.fromkeys(held.active, member_id))
        for task in held.standby:
            self._standby.setdefault(task, set()).add(member_id)

    def _release(self, member_id: str, held: Tasks) -> None:
        self._in_currents -= len(held)
        for task in held.active:
            if self._active.get(task) == member_id:
                del self._active[task]
        for task in held.standby:
            holders = self._standby.get(task, set())
            holders.discard(member_id)
            if not holders:
                self._standby.pop(task, None)

    def drop_orphans(self) -> None:
        """After a load, drop targets and current assignments of members that do not exist. This broker
        writes none; the log may be another coordinator's.
        """
        for member_id in [each for each in self.targets if each not in self.members]:
            self._put_target(member_id, None)
        for member_id in [each for each in self.currents if each not in self.members]:
            self._put_current(member_id, None)

    def entries(self, group_id: str) -> Iterator[StreamsEntry]:
        """Yield one record per key, with its value when the iteration reaches it, if it still exists."""
        if self.topology is not None:
            yield StreamsEntry(StreamsKey(RecordKind.TOPOLOGY, group_id), self.topology)
        if self.epoch is not None:
            yield StreamsEntry(StreamsKey(RecordKind.EPOCH, group_id), self.epoch)
        if self.target_epoch is not None:
            yield StreamsEntry(StreamsKey(RecordKind.TARGET_EPOCH, group_id), self.target_epoch)
        for member_id in list(self.members):
            member = self.members.get(member_id)
            if member is None:
                continue
            yield StreamsEntry(StreamsKey(RecordKind.MEMBER, group_id, member_id), member)
            if (target := self.targets.get(member_id)) is not None:
                yield StreamsEntry(StreamsKey(RecordKind.TARGET, group_id, member_id), target)
            if (current := self.currents.get(member_id)) is not None:
                yield StreamsEntry(StreamsKey(RecordKind.CURRENT, group_id, member_id), current)

    def removal_of(self, group_id: str, member_id: str) -> Iterator[StreamsEntry]:
        """Yield tombstones for a member, in Kafka's order."""
        if member_id in self.currents:
            yield StreamsEntry(StreamsKey(RecordKind.CURRENT, group_id, member_id), None)
        if member_id in self.targets:
            yield StreamsEntry(StreamsKey(RecordKind.TARGET, group_id, member_id), None)
        yield StreamsEntry(StreamsKey(RecordKind.MEMBER, group_id, member_id), None)

    def tombstones(self, group_id: str) -> Iterator[StreamsEntry]:
        """Yield a tombstone for each key."""
        for member_id in list(self.members):
            yield from self.removal_of(group_id, member_id)
        if self.target_epoch is not None:
            yield StreamsEntry(StreamsKey(RecordKind.TARGET_EPOCH, group_id), None)
        if self.epoch is not None:
            yield StreamsEntry(StreamsKey(RecordKind.EPOCH, group_id), None)
        if self.topology is not None:
            yield StreamsEntry(StreamsKey(RecordKind.TOPOLOGY, group_id), None)

    def validate(self) -> None:
        """Check the invariants, for tests."""
        active = [task for current in self.currents.values() for task in current.held.active]
        assert len(active) == len(set(active)), "an active task has two owners"
        assert set(active) == self._active.keys()
        assert self.targets.keys() <= self.members.keys()
        assert self.currents.keys() <= self.members.keys()
        again = StreamsState()
        for entry in self.entries(""):
            again.put(entry)
        assert vars(again) == vars(self)


def _size_of(held: Topology | StreamsMember | None) -> int:
    return 0 if held is None else held.size_bytes
