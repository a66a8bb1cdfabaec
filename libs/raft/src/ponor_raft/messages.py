"""What replicas say to each other.

What lives here: values. Every message names both ends as (node id, directory id) and carries the sender's term; a receiver drops what is not addressed
to its own directory. How they travel is the owner's business: they may be lost, repeated, delayed and reordered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ponor_raft.entry import Entry, SnapshotMeta
from ponor_raft.membership import ReplicaId


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every message has. `term` is the sender's (of a pre-vote request: the term it would campaign in)."""

    sender: ReplicaId
    to: ReplicaId
    term: int


@dataclass(frozen=True, slots=True)
class VoteRequest(Envelope):
    """Asks for a vote, or (`pre_vote`) whether one would be given. `transfer`: the leader asked for this election, so its lease is void."""

    last_index: int
    last_term: int
    pre_vote: bool
    transfer: bool = False


@dataclass(frozen=True, slots=True)
class VoteResponse(Envelope):
    """The answer; a granted pre-vote carries the requested term, so that it counts for that round alone."""

    pre_vote: bool
    granted: bool


@dataclass(frozen=True, slots=True)
class AppendRequest(Envelope):
    """Entries after (`prev_index`, `prev_term`), and how far the leader has committed; `commit_term` is the term of that entry.

    `acknowledged`: the receiver acknowledged entries up to here in this term. If its log ends before, its disk lost them.
    """

    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int
    commit_term: int = 0
    acknowledged: int = 0


@dataclass(frozen=True, slots=True)
class AppendResponse(Envelope):
    """Sent when everything up to `match_index` is durable here. Rejected: try again at or before `hint_index`, whose term here is `hint_term`."""

    match_index: int
    rejected: bool = False
    rejected_index: int = 0
    hint_index: int = 0
    hint_term: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatRequest(Envelope):
    """The leader is there. `round` rises; a majority's echo of a round proves leadership at the time the round began (read index, lease)."""

    commit: int
    round: int


@dataclass(frozen=True, slots=True)
class HeartbeatResponse(Envelope):
    """Echo of a round."""

    round: int


@dataclass(frozen=True, slots=True)
class TimeoutNow(Envelope):
    """The leader hands over: campaign at once, without a pre-vote."""


@dataclass(frozen=True, slots=True)
class SnapshotChunk(Envelope):
    """A piece of a snapshot's body at `offset`; the last one ends at `meta.size_bytes`."""

    meta: SnapshotMeta
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotAck(Envelope):
    """The body up to `next_offset` of the snapshot at `index` is kept; `installed`: the log now begins there."""

    index: int
    next_offset: int
    installed: bool


@dataclass(frozen=True, slots=True)
class ReadIndexRequest(Envelope):
    """A follower asks for an index that a linearizable read must wait for."""

    context: int


@dataclass(frozen=True, slots=True)
class ReadIndexResponse(Envelope):
    """The answer; `index` 0 means refused: ask again, or elsewhere."""

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
