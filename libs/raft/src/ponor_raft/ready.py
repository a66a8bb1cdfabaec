"""Instructions of the core to its owner, returned by `RaftNode.ready`.

The owner executes them in field order and may work on several at a time, but `Persist`s must become durable
in the given order and be reported in that order by `RaftNode.persisted`.
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
    """Leader known to this replica; returned whenever a field changed."""

    role: Role
    term: int
    leader: ReplicaId | None


@dataclass(frozen=True, slots=True)
class Persist:
    """Write this to the log, sync, then call `persisted(sequence)`; only then may `messages` leave.

    `entries` are contiguous; when the first index is not above what was written before, the log is cut before
    it (write it as a fact that later entries replace earlier ones of the same index and everything behind
    them).

    `begins_after`: a received snapshot has replaced the whole log, which begins anew behind this (index,
    term): everything written before is void, also what lies below. The owner keeps this as a fact of its own
    before it writes these entries; it may do so as early as `RaftNode.restore`. Without it a restart would
    take the old entries for the beginning of the log, and find that they contradict the snapshot.
    """

    sequence: int
    hard_state: HardState | None
    entries: tuple[Entry, ...]
    messages: tuple[Message, ...]
    begins_after: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SendSnapshot:
    """Send `to` one chunk of the snapshot at `index`, from `offset` (`index` 0: the newest snapshot, from its
    start).
    """

    to: ReplicaId
    term: int
    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReadReady:
    """A linearizable read requested with `context` may be served once `index` is applied.

    `index` None: refused, retry.
    """

    context: int
    index: int | None


@dataclass(frozen=True, slots=True)
class LostEntries:
    """This replica acknowledged entries up to `acknowledged_index`, and its log ends at `last_index`: its
    disk lost what was synced.
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
