"""Instructions of the core to its owner, returned by `RaftNode.ready`.

The owner executes the fields of a `Ready` in order and may work on several `Ready`s at a time, but it must
make `Persist`s durable, and call `RaftNode.persisted` for them, in the given order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ponor_raft.entry import Entry, HardState
from ponor_raft.membership import ReplicaId
from ponor_raft.messages import Message, SnapshotChunk


class Role(Enum):
    """Role of a replica. Learners are followers that never campaign."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Leadership:
    """Role, term and known leader of this replica; returned whenever one of them changed."""

    role: Role
    term: int
    leader: ReplicaId | None


@dataclass(frozen=True, slots=True)
class Persist:
    """Write this to the log, sync, then call `persisted(sequence)`; only then may `messages` be sent.

    `entries` are contiguous; if the first index was written before, they replace that entry and all later
    ones. (An append-only log appends them; its reader must then apply this rule.)

    `begins_after`: a received snapshot has replaced the whole log. The new log starts after this (index,
    term); all entries written before are void, whatever their index. The owner must record this durably
    before it writes these entries, and may do so as early as `RaftNode.restore`. Otherwise a restart would
    read the old entries, which contradict the snapshot.
    """

    sequence: int
    hard_state: HardState | None
    entries: tuple[Entry, ...]
    messages: tuple[Message, ...]
    begins_after: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SendSnapshot:
    """Send the chunk at `offset` of the snapshot at `index` to `to`. `index` 0: the newest snapshot, from
    offset 0.
    """

    to: ReplicaId
    term: int
    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReadReady:
    """A linearizable read requested with `context` may be served once `index` is applied.

    `index` None: the read was refused and may be retried.
    """

    context: int
    index: int | None


@dataclass(frozen=True, slots=True)
class LostEntries:
    """The disk lost synced entries: the replica acknowledged entries up to `acknowledged_index`, but its log
    ends at `last_index`.
    """

    last_index: int
    acknowledged_index: int


@dataclass(frozen=True, slots=True)
class Ready:
    """All instructions since the last call.

    `committed` entries are durable locally and returned once, in order.
    """

    leadership: Leadership | None = None
    messages: tuple[Message, ...] = ()
    persist: Persist | None = None
    committed: tuple[Entry, ...] = ()
    reads: tuple[ReadReady, ...] = ()
    chunks: tuple[SnapshotChunk, ...] = ()
    snapshots: tuple[SendSnapshot, ...] = ()
    lost: LostEntries | None = None
