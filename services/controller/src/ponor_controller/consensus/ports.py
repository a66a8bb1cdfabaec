"""The seam between deciding what to write and agreeing that it is written.

What lives here: the protocol that Raft fulfils, and the values that pass through it. Nothing in here knows what a record means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ponor.metadata.v1 import records_pb2
from ponor_raft.membership import Membership
from ponor_raft.ready import Leadership
from ponor_runtime.identity import NodeId


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One batch of the log. `data` is its one encoding: these bytes are stored, digested and sent, never made a second time.

    `term` of the log is the batch's own. `membership`: what the batch's VotersSet makes of the quorum, if it has one. `decoded`: the batch, where somebody has it.
    """

    index: int
    term: int
    data: bytes
    membership: Membership | None = None
    decoded: records_pb2.RecordBatch | None = None

    @property
    def batch(self) -> records_pb2.RecordBatch:
        """The batch. Followers decode it for this, and only the few that somebody looks at."""
        return records_pb2.RecordBatch.FromString(self.data) if self.decoded is None else self.decoded


CommitListener: TypeAlias = Callable[[Sequence[LogEntry]], None]
"""Called with committed entries: each once, in the order of indices, in slices of a few milliseconds."""

LeadershipListener: TypeAlias = Callable[[Leadership], None]
"""Called whenever role, term or known leader changed; before any entry that was committed afterwards is delivered."""


class Consensus(Protocol):
    """Agrees with the other voters on one order of entries."""

    @property
    def is_leader(self) -> bool:
        """Whether this voter leads its term, as far as it knows."""
        ...

    @property
    def leading(self) -> bool:
        """Whether it leads, and the opening entry of its term is committed and delivered: only then may anything be decided here."""
        ...

    @property
    def term(self) -> int:
        """The present term; every entry carries the one it was proposed in."""
        ...

    @property
    def leadership(self) -> Leadership:
        """Who leads, as known here."""
        ...

    @property
    def accepts_proposals(self) -> bool:
        """Whether `propose` would take an entry: leading, and not handing over."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether the entries in memory leave room for more proposals. Without room, wait: a snapshot makes some."""
        ...

    def room_problem(self, size_bytes: int) -> str | None:
        """Why an entry of this size would not be taken now, however long that lasts; None if it would."""
        ...

    def on_compaction(self, listener: Callable[[], None]) -> None:
        """Hear whenever entries left memory."""
        ...

    def leader_address(self) -> str | None:
        """HOST:PORT of the leader's sessions, if a leader and its address are known."""
        ...

    def propose(self, entry: LogEntry) -> None:
        """Take the next entry of the log. It is committed when the listeners hear of it, and not before.

        Many may be in flight; the caller bounds how many.

        Raises:
            NotLeaderError: another voter leads, or this one is handing over.
            MembershipChangeError: the entry changes the membership, and that is not allowed now; nothing was taken.
            ProposalsFullError: see `room_problem`.
        """
        ...

    def settle(self) -> None:
        """Nothing more is proposed for now: send and write at once what was, not only at the end of this turn of the loop."""
        ...

    def on_commit(self, listener: CommitListener) -> None:
        """Hear of every committed entry from now on."""
        ...

    def on_leadership(self, listener: LeadershipListener) -> None:
        """Hear of every change from now on."""
        ...

    def on_leading(self, listener: Callable[[], None]) -> None:
        """Hear whenever `leading` becomes true. That it ended is heard by `on_leadership`."""
        ...

    async def read_index(self) -> int:
        """An index that the image here must have reached before it serves a linearizable read that was asked for before this call.

        Raises:
            NotLeaderError: no leader answered in time.
        """
        ...

    async def transfer(self, node_id: NodeId) -> None:
        """Hand leadership to a voter; returns when it leads.

        Raises:
            NotLeaderError: this voter does not lead.
            TransferError: `node_id` is no other voter, or did not take over in time; this voter goes on.
        """
        ...
