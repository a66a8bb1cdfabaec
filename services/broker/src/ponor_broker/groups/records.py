"""The records of `__consumer_offsets` as values; `record_codec.py` encodes them."""

from __future__ import annotations

from dataclasses import dataclass

NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Group and partition of an offset."""

    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A committed position: the next Kafka offset to consume.

    `expire_timestamp_ms` is -1 except for commits of versions 2 to 4 with an explicit retention
    time.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int = NO_TIMESTAMP
    topic_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class GroupKey:
    """Id of a group."""

    group_id: str


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A stored member: its subscription under the chosen protocol, and its assignment."""

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
    """A generation of a group. Without members: an empty group, whose generation must not decrease."""

    protocol_type: str
    generation: int
    protocol_name: str | None = None
    leader: str | None = None
    state_timestamp_ms: int = NO_TIMESTAMP
    members: tuple[MemberRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """A commit; a value of None is a tombstone."""

    key: OffsetKey
    value: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A generation; a value of None is a tombstone."""

    key: GroupKey
    value: GroupRecord | None
