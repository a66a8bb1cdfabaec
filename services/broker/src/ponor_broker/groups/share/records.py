"""The records of a share group as values; `record_codec.py` encodes them.

Members, targets, current assignments and epochs are the values of a consumer group, under keys of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ponor_broker.groups.consumer.assignment import CurrentAssignment, Partitions
from ponor_broker.groups.consumer.member import ConsumerMember
from ponor_broker.groups.consumer.records import (
    CurrentEntry,
    CurrentKey,
    EpochEntry,
    EpochKey,
    GroupEpoch,
    MemberEntry,
    MemberKey,
    TargetEntry,
    TargetEpoch,
    TargetEpochEntry,
    TargetEpochKey,
    TargetKey,
)
from ponor_broker.groups.share.state_partitions import StatePartitions

AssignmentEntry: TypeAlias = EpochEntry | MemberEntry | TargetEpochEntry | TargetEntry | CurrentEntry
"""A record of a consumer group that a share group has, too."""
AssignmentKey: TypeAlias = EpochKey | MemberKey | TargetEpochKey | TargetKey | CurrentKey
AssignmentValue: TypeAlias = GroupEpoch | ConsumerMember | TargetEpoch | Partitions | CurrentAssignment


@dataclass(frozen=True, slots=True)
class ShareKey:
    """Key of a share group's record; `inner` is that of the same record of a consumer group."""

    inner: AssignmentKey

    @property
    def group_id(self) -> str:
        """Id of the group."""
        return self.inner.group_id


@dataclass(frozen=True, slots=True)
class ShareEntry:
    """A record of a share group; a value of None is a tombstone."""

    inner: AssignmentEntry

    @property
    def key(self) -> ShareKey:
        """Key of the record."""
        return ShareKey(self.inner.key)

    @property
    def value(self) -> AssignmentValue | None:
        """Value of the record."""
        return self.inner.value


@dataclass(frozen=True, slots=True)
class StatePartitionsKey:
    """Key of the partitions with delivery states."""

    group_id: str


@dataclass(frozen=True, slots=True)
class StatePartitionsEntry:
    """The partitions with delivery states; a value of None is a tombstone."""

    key: StatePartitionsKey
    value: StatePartitions | None


ShareGroupEntry: TypeAlias = ShareEntry | StatePartitionsEntry
