"""The records of `__consumer_offsets` as values; their bytes are in `record_codec.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Whose offset it is."""

    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed position: the next Kafka offset to consume.

    `expire_timestamp_ms` is -1 but for commits of versions 2 to 4 with an explicit retention time.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int = NO_TIMESTAMP
    topic_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Which group."""

    group_id: str


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A member as it is kept: its subscription under the chosen protocol, and its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A generation of a group. Without members: an empty group, whose generation must not go back."""

    protocol_type: str
    generation: int
    protocol_name: str | None = None
    leader: str | None = None
    state_timestamp_ms: int = NO_TIMESTAMP
    members: tuple[MemberRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """A commit; None is a tombstone."""

    key: OffsetKey
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A generation; None is a tombstone."""

    key: GroupKey
    value: GroupRecord | None


Entry: TypeAlias = OffsetEntry | GroupEntry
