"""The state of a consumer group: exactly what its records contain, and indexes of it.

`put` is the only way to change it, for events as for a load, so a load restores the state before. The order
in which a load puts the newest record of each key does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeVar

from ponor_broker.groups.consumer.assignment import (
    NEW_MEMBER,
    NO_PARTITIONS,
    CurrentAssignment,
    EpochedPartitions,
    MemberState,
    Partitions,
)
from ponor_broker.groups.consumer.member import TOPIC_BYTES, ConsumerMember
from ponor_broker.groups.consumer.records import (
    ConsumerEntry,
    CurrentEntry,
    CurrentKey,
    EpochEntry,
    EpochKey,
    ExpressionEntry,
    ExpressionKey,
    GroupEpoch,
    MemberEntry,
    MemberKey,
    ResolvedExpression,
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
    TargetEpochKey,
    TargetKey,
)

TARGET_PARTITION_BYTES: Final = 70
"""Memory of a partition in a target, without its later entry in a current assignment."""
CURRENT_PARTITION_BYTES: Final = 200
"""Memory of a partition in a current assignment, with its entry in the index of holders."""
K = TypeVar("K", str, int)
_NO_EPOCH: Final = GroupEpoch(1)
_NO_TARGET: Final = TargetEpoch(1)
"""A new group has an empty target at epoch 1, as in Kafka: an epoch of 0 would make members join again."""


class ConsumerState:
    """The state of one group. Callers read the attributes, and change nothing except by `put`."""

    def __init__(self) -> None:
        self.epoch: GroupEpoch | None = None
        self.target_epoch: TargetEpoch | None = None
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.currents: dict[str, CurrentAssignment] = {}
        self.expressions: dict[str, ResolvedExpression] = {}
        self.subscriptions: Counter[str] = Counter()
        """Number of members that subscribe to a topic by name."""
        self.expression_users: Counter[str] = Counter()
        """Number of members that subscribe by an expression."""
        self.assignors: Counter[str] = Counter()
        """Number of members that prefer an assignor."""
        self.classic_members = 0
        """Number of members that use the classic protocol."""
        self.classic_protocols: Counter[str] = Counter()
        """Number of classic members that support a protocol."""
        self.static_members: dict[str, str] = {}
        """Member ids by instance id."""
        self._other_bytes = 0
        self._in_targets = 0
        """Number of partitions in all targets."""
        self._in_currents = 0
        """Number of partitions in all current assignments."""
        self._holders: dict[bytes, dict[int, str]] = {}
        self._stable_at: Counter[int] = Counter()
        """Number of current assignments in state STABLE, by epoch."""

    @property
    def size_bytes(self) -> int:
        """Memory of the state. A target reserves the memory of the current assignments that follow it, so a
        member that continues towards its target does not need more memory.
        """
        reserved = max(self._in_targets, self._in_currents)
        targets_bytes = TARGET_PARTITION_BYTES * self._in_targets
        return self._other_bytes + targets_bytes + CURRENT_PARTITION_BYTES * reserved

    @property
    def group_epoch(self) -> int:
        """The group epoch."""
        return (self.epoch or _NO_EPOCH).epoch

    @property
    def topics_hash(self) -> int:
        """Hash of the subscribed topics for which the group epoch was raised."""
        return (self.epoch or _NO_EPOCH).topics_hash

    @property
    def assigned_epoch(self) -> int:
        """The group epoch for which the target was computed."""
        return (self.target_epoch or _NO_TARGET).epoch

    @property
    def has_records(self) -> bool:
        """Whether the log contains a record of the group."""
        return bool(self.epoch or self.target_epoch or self.members or self.expressions)

    @property
    def all_reached_target(self) -> bool:
        """Whether every member owns its target."""
        return self._stable_at[self.assigned_epoch] == len(self.members)

    def target_of(self, member_id: str) -> Partitions:
        """Return the target of a member."""
        return self.targets.get(member_id, NO_PARTITIONS)

    def current_of(self, member_id: str) -> CurrentAssignment:
        """Return the current assignment of a member."""
        return self.currents.get(member_id, NEW_MEMBER)

    def holder(self, topic_id: bytes, partition: int) -> str | None:
        """Return the member that has a partition, or has to revoke it."""
        return self._holders.get(topic_id, {}).get(partition)

    def put(self, entry: ConsumerEntry) -> ConsumerEntry:
        """Apply a record; return the record that restores the value before."""
        match entry:
            case EpochEntry(key, epoch):
                before, self.epoch = self.epoch, epoch
                return EpochEntry(key, before)
            case TargetEpochEntry(target_epoch_key, target_epoch):
                former, self.target_epoch = self.target_epoch, target_epoch
                return TargetEpochEntry(target_epoch_key, former)
            case MemberEntry(member_key, member):
                return MemberEntry(member_key, self._put_member(member_key.member_id, member))
            case TargetEntry(target_key, target):
                return TargetEntry(target_key, self._put_target(target_key.member_id, target))
            case CurrentEntry(current_key, current):
                return CurrentEntry(current_key, self._put_current(current_key.member_id, current))
            case ExpressionEntry(expression_key, resolved):
                old = self._put_expression(expression_key.expression, resolved)
                return ExpressionEntry(expression_key, old)

    def _put_member(self, member_id: str, member: ConsumerMember | None) -> ConsumerMember | None:
        before = self.members.get(member_id)
        if before is not None:
            self._index(before, -1)
            # A static member's successor may have been put first.
            if before.instance_id is not None and self.static_members.get(before.instance_id) == member_id:
                del self.static_members[before.instance_id]
        if member is None:
            self.members.pop(member_id, None)
        else:
            self.members[member_id] = member
            self._index(member, 1)
            if member.instance_id is not None:
                self.static_members[member.instance_id] = member_id
        return before

    def _index(self, member: ConsumerMember, sign: int) -> None:
        self._other_bytes += sign * member.size_bytes
        for topic in member.topics:
            _count(self.subscriptions, topic, sign)
        if member.expression:
            _count(self.expression_users, member.expression, sign)
        if member.assignor is not None:
            _count(self.assignors, member.assignor, sign)
        if member.classic is not None:
            self.classic_members += sign
            for name in {protocol.name for protocol in member.classic.protocols}:
                _count(self.classic_protocols, name, sign)

    def _put_target(self, member_id: str, target: Partitions | None) -> Partitions | None:
        before = self.targets.get(member_id)
        self._in_targets += _count_of(target) - _count_of(before)
        if target is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = target
        return before

    def _put_current(self, member_id: str, current: CurrentAssignment | None) -> CurrentAssignment | None:
        before = self.currents.pop(member_id, None)
        if before is not None:
            self._release(member_id, before.assigned)
            self._release(member_id, before.revoking)
            if before.state is MemberState.STABLE:
                _count(self._stable_at, before.epoch, -1)
        if current is not None:
            self.currents[member_id] = current
            self._hold(member_id, current.assigned)
            self._hold(member_id, current.revoking)
            if current.state is MemberState.STABLE:
                _count(self._stable_at, current.epoch, 1)
        return before

    def _hold(self, member_id: str, partitions: EpochedPartitions) -> None:
        for topic_id, epochs in partitions.items():
            self._in_currents += len(epochs)
            holders = self._holders.setdefault(topic_id, {})
            for partition in epochs:
                holders[partition] = member_id

    def _release(self, member_id: str, partitions: EpochedPartitions) -> None:
        for topic_id, epochs in partitions.items():
            self._in_currents -= len(epochs)
            holders = self._holders.get(topic_id, {})
            for partition in epochs:
                if holders.get(partition) == member_id:
                    del holders[partition]
            if not holders:
                self._holders.pop(topic_id, None)

    def _put_expression(
        self, expression: str, resolved: ResolvedExpression | None
    ) -> ResolvedExpression | None:
        before = self.expressions.get(expression)
        self._other_bytes += TOPIC_BYTES * (_topics_of(resolved) - _topics_of(before))
        if resolved is None:
            self.expressions.pop(expression, None)
        else:
            self.expressions[expression] = resolved
        return before

    def drop_orphans(self) -> None:
        """After a load, drop targets and current assignments of members that do not exist. This broker
        writes none; the log may be another coordinator's.
        """
        for member_id in [each for each in self.targets if each not in self.members]:
            self._put_target(member_id, None)
        for member_id in [each for each in self.currents if each not in self.members]:
            self._put_current(member_id, None)

    def entries(self, group_id: str) -> Iterator[ConsumerEntry]:
        """Yield one record per key, with its value when the iteration reaches it, if it still exists."""
        if self.epoch is not None:
            yield EpochEntry(EpochKey(group_id), self.epoch)
        if self.target_epoch is not None:
            yield TargetEpochEntry(TargetEpochKey(group_id), self.target_epoch)
        for expression in list(self.expressions):
            resolved = self.expressions.get(expression)
            if resolved is not None:
                yield ExpressionEntry(ExpressionKey(group_id, expression), resolved)
        for member_id in list(self.members):
            member = self.members.get(member_id)
            if member is None:
                continue
            yield MemberEntry(MemberKey(group_id, member_id), member)
            if (target := self.targets.get(member_id)) is not None:
                yield TargetEntry(TargetKey(group_id, member_id), target)
            if (current := self.currents.get(member_id)) is not None:
                yield CurrentEntry(CurrentKey(group_id, member_id), current)

    def tombstones(self, group_id: str) -> Iterator[ConsumerEntry]:
        """Yield a tombstone for each key."""
        for member_id in self.members:
            if member_id in self.currents:
                yield CurrentEntry(CurrentKey(group_id, member_id), None)
            if member_id in self.targets:
                yield TargetEntry(TargetKey(group_id, member_id), None)
            yield MemberEntry(MemberKey(group_id, member_id), None)
        for expression in self.expressions:
            yield ExpressionEntry(ExpressionKey(group_id, expression), None)
        if self.target_epoch is not None:
            yield TargetEpochEntry(TargetEpochKey(group_id), None)
        if self.epoch is not None:
            yield EpochEntry(EpochKey(group_id), None)

    def validate(self) -> None:
        """Check the invariants, for tests."""
        held = [
            (topic_id, partition)
            for current in self.currents.values()
            for partitions in (current.assigned, current.revoking)
            for topic_id, epochs in partitions.items()
            for partition in epochs
        ]
        assert len(held) == len(set(held)), "a partition is in the current assignment of two members"
        assert set(held) == {(topic, p) for topic, holders in self._holders.items() for p in holders}
        assert self.targets.keys() <= self.members.keys()
        assert self.currents.keys() <= self.members.keys()
        again = ConsumerState()
        for entry in self.entries(""):
            again.put(entry)
        assert vars(again) == vars(self)


def _count(counter: Counter[K], key: K, sign: int) -> None:
    counter[key] += sign
    if not counter[key]:
        del counter[key]


def _count_of(partitions: Partitions | None) -> int:
    return sum(map(len, partitions.values())) if partitions else 0


def _topics_of(resolved: ResolvedExpression | None) -> int:
    return 0 if resolved is None else len(resolved.topics)
