"""The records of a consumer group as values; `record_codec.py` encodes them.

A value of None is a tombstone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ponor_broker.groups.consumer.assignment import CurrentAssignment, Partitions
from ponor_broker.groups.consumer.member import ConsumerMember


@dataclass(frozen=True, slots=True)
class EpochKey:
    """Key of the group epoch."""

    group_id: str


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """The group epoch. `topics_hash` changes with the subscribed topics and their partitions; 0: no topic."""

    epoch: int
    topics_hash: int = 0


@dataclass(frozen=True, slots=True)
class MemberKey:
    """Key of a member."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class TargetEpochKey:
    """Key of the epoch of the target assignment."""

    group_id: str


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """The group epoch for which the target was computed, and when, in ms since 1970."""

    epoch: int
    computed_ms: int = 0


@dataclass(frozen=True, slots=True)
class TargetKey:
    """Key of the target of a member."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class CurrentKey:
    """Key of the current assignment of a member."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ExpressionKey:
    """Key of a regular expression."""

    group_id: str
    expression: str


@dataclass(frozen=True, slots=True)
class ResolvedExpression:
    """The names of the topics that match, at a version of the image, and when, in ms since 1970."""

    topics: frozenset[str]
    version: int
    resolved_ms: int


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """A group epoch."""

    key: EpochKey
    value: GroupEpoch | None


@dataclass(frozen=True, slots=True)
class MemberEntry:
    """A member. `member_id` of the value equals that of the key."""

    key: MemberKey
    value: ConsumerMember | None


@dataclass(frozen=True, slots=True)
class TargetEpochEntry:
    """An epoch of the target."""

    key: TargetEpochKey
    value: TargetEpoch | None


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """A target of a member."""

    key: TargetKey
    value: Partitions | None


@dataclass(frozen=True, slots=True)
class CurrentEntry:
    """A current assignment."""

    key: CurrentKey
    value: CurrentAssignment | None


@dataclass(frozen=True, slots=True)
class ExpressionEntry:
    """A resolved expression."""

    key: ExpressionKey
    value: ResolvedExpression | None


ConsumerEntry: TypeAlias = (
    EpochEntry | MemberEntry | TargetEpochEntry | TargetEntry | CurrentEntry | ExpressionEntry
)
