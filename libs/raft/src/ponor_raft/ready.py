"""What the core wants done: instructions out.

What lives here: values that `RaftNode.ready` returns. The owner carries them out in the order of the fields and may work on several at a time, with one rule:
`persist`s become durable in the order they were given, and are reported in that order by `RaftNode.persisted`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ponor_raft.entry import Entry, HardState
from ponor_raft.membership import ReplicaId
from ponor_raft.messages import Message, SnapshotChunk


class Role(Enum):
    """What a replica does at present. Learners are followers that never campaign."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who leads as far as this replica knows. Given whenever one of the fields changed."""

    role: Role
    term: int
    leader: ReplicaId | None


@dataclass(frozen=True, slots=True)
class Persist:
    """Write this to the log, sync, then call `persisted(sequence)`; only then may `messages` leave.

    `entries` are contiguous; when the first index is not above what was written before, the log is cut before it (write it as a fact that later
    entries replace earlier ones of the same index and everything behind them).

    `begins_after`: a received snapshot has replaced the whole log, which begins anew behind this (index, term): everything written before is void, also what
    lies below. The owner keeps this as a fact of its own before it writes these entries; it may do so as early as `RaftNode.restore`. Without it a restart
    would take the old entries for the beginning of the log, and find that they contradict the snapshot.
    """

    sequence: int
    hard_state: HardState | None
    entries: tuple[Entry, ...]
    messages: tuple[Message, ...]
    begins_after: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SendSnapshot:
    """Send `to` one chunk of the newest snapshot, from `offset` of the snapshot at `index` on (`index` 0: whichever is newest, from its start)."""

    to: ReplicaId
    term: int
    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReadReady:
    """A linearizable read asked for with `context` may be served once `index` is applied. `index` None: refused, ask again."""

    context: int
    index: int | None


@dataclass(frozen=True, slots=True)
class LostEntries:
    """This replica acknowledged entries up to `acknowledged_index`, and its log ends at `last_index`: its disk lost what was synced."""

    last_index: int
    acknowledged_index: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything since the last call. `committed` entries are durable here, given once each, in order."""

    leadership: Leadership | None = None
    messages: tuple[Message, ...] = ()
    persist: Persist | None = None
    committed: tuple[Entry, ...] = ()
    reads: tuple[ReadReady, ...] = ()
    chunks: tuple[SnapshotChunk, ...] = ()
    snapshots: tuple[SendSnapshot, ...] = ()
    lost: LostEntries | None = None
