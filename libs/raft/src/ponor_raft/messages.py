"""Messages between replicas.

Every message contains sender and receiver as (node id, directory id) and the sender's term. A receiver drops
messages for other directories. The owner transports the messages; they may be lost, repeated, delayed and
reordered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ponor_raft.entry import Entry, SnapshotMeta
from ponor_raft.membership import ReplicaId


@dataclass(frozen=True, slots=True)
class Envelope:
    """Common fields. `term` is the sender's current term; in a pre-vote request, the planned term."""

    sender: ReplicaId
    to: ReplicaId
    term: int


@dataclass(frozen=True, slots=True)
class VoteRequest(Envelope):
    """Request for a vote, or with `pre_vote` for a pre-vote.

    `transfer`: the leader requested this election, so receivers ignore the leader lease.
    """

    last_index: int
    last_term: int
    pre_vote: bool
    transfer: bool = False


@dataclass(frozen=True, slots=True)
class VoteResponse(Envelope):
    """Response to a vote request.

    A granted pre-vote contains the requested term and counts only in a round for that term.
    """

    pre_vote: bool
    granted: bool


@dataclass(frozen=True, slots=True)
class AppendRequest(Envelope):
    """Entries after (`prev_index`, `prev_term`), and the leader's commit index.

    `commit_term` is the term of the entry at `commit`.

    `acknowledged`: index up to which the receiver acknowledged entries in this term. If the receiver's log
    ends before this index, its disk has lost entries.
    """

    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int
    commit_term: int = 0
    acknowledged: int = 0


@dataclass(frozen=True, slots=True)
class AppendResponse(Envelope):
    """Acknowledgement that everything up to `match_index` is durable.

    `rejected`: the log has no matching entry at `rejected_index`. The leader retries at or before
    `hint_index`, whose term is `hint_term`.
    """

    match_index: int
    rejected: bool = False
    rejected_index: int = 0
    hint_index: int = 0
    hint_term: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatRequest(Envelope):
    """Leader heartbeat.

    The leader increments `round`. When a majority has echoed a round, the sender was still the leader when
    the round started (used for read index and lease).
    """

    commit: int
    round: int


@dataclass(frozen=True, slots=True)
class HeartbeatResponse(Envelope):
    """Echo of a heartbeat round."""

    round: int


@dataclass(frozen=True, slots=True)
class TimeoutNow(Envelope):
    """Leadership transfer: the receiver campaigns immediately, without a pre-vote."""


@dataclass(frozen=True, slots=True)
class SnapshotChunk(Envelope):
    """Chunk of a snapshot's body at `offset`; the last chunk ends at `meta.size_bytes`."""

    meta: SnapshotMeta
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotAck(Envelope):
    """Acknowledgement that the member has stored the body of the snapshot at `index` up to `next_offset`.

    `installed`: the member has installed the whole snapshot, or its log already contained it.
    """

    index: int
    next_offset: int
    installed: bool


@dataclass(frozen=True, slots=True)
class ReadIndexRequest(Envelope):
    """A follower's request for the index that a linearizable read must wait for."""

    context: int


@dataclass(frozen=True, slots=True)
class ReadIndexResponse(Envelope):
    """Response to a read request. `index` 0: the receiver refused; retry, or ask another replica."""

    context: int
    index: int


Message: TypeAlias = (
    VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendResponse
    | HeartbeatRequest
    | HeartbeatResponse
    | TimeoutNow
    | SnapshotChunk
    | SnapshotAck
    | ReadIndexRequest
    | ReadIndexResponse
)
