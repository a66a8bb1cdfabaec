"""The `Consensus` protocol: the voters agree on one order of entries, whatever the entries contain."""

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
    """One batch of the log.

    Attributes:
        index: index of the batch.
        term: term in which the batch was proposed.
        data: the encoded batch. The same bytes are stored, digested and sent.
        membership: the membership that the batch's VotersSet record sets; None without such a record.
        decoded: the decoded batch; None if it was not decoded yet.
    """

    index: int
    term: int
    data: bytes
    membership: Membership | None = None
    decoded: records_pb2.RecordBatch | None = None

    @property
    def batch(self) -> records_pb2.RecordBatch:
        """The batch; followers decode it on access."""
        return records_pb2.RecordBatch.FromString(self.data) if self.decoded is None else self.decoded


CommitListener: TypeAlias = Callable[[Sequence[LogEntry]], None]
"""Called with a few committed entries, in the order of their indices, each entry once."""

LeadershipListener: TypeAlias = Callable[[Leadership], None]
"""Called after the role, the term or the known leader changed, and before later entries are delivered."""


class Consensus(Protocol):
    """Agreement of the voters on one order of entries."""

    @property
    def is_leader(self) -> bool:
        """Whether this voter believes that it leads its term."""
        ...

    @property
    def leading(self) -> bool:
        """Whether this voter leads and the opening entry of its term was delivered; only then may it
        decide.
        """
        ...

    @property
    def term(self) -> int:
        """The present term."""
        ...

    @property
    def leadership(self) -> Leadership:
        """Role, term and leader according to this voter."""
        ...

    @property
    def accepts_proposals(self) -> bool:
        """Whether `propose` would accept an entry: leading and not transferring leadership."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether the log has room in memory for more proposals. A snapshot makes room."""
        ...

    def room_problem(self, size_bytes: int) -> str | None:
        """Why an entry of this size would be refused now; None if it would be accepted."""
        ...

    def on_compaction(self, listener: Callable[[], None]) -> None:
        """Call `listener` after entries were removed from memory."""
        ...

    def leader_address(self) -> str | None:
        """HOST:PORT of the leader's sessions, if a leader and its address are known."""
        ...

    def propose(self, entry: LogEntry) -> None:
        """Append the next entry to the log. The listeners get it when it is committed.

        The caller bounds the entries in flight.

        Raises:
            NotLeaderError: another voter leads, or this one transfers its leadership.
            MembershipChangeError: the entry changes the membership, which is not allowed now.
            ProposalsFullError: see `room_problem`.
        """
        ...

    def flush(self) -> None:
        """Write and send proposed entries now instead of at the end of this turn of the event loop."""
        ...

    def on_commit(self, listener: CommitListener) -> None:
        """Call `listener` with every entry that is committed from now on."""
        ...

    def on_leadership(self, listener: LeadershipListener) -> None:
        """Call `listener` after every change from now on."""
        ...

    def on_leading(self, listener: Callable[[], None]) -> None:
        """Call `listener` when `leading` becomes true. `on_leadership` reports the end of leadership."""
        ...

    async def read_index(self) -> int:
        """The index that this controller's image must reach before it serves a linearizable read.

        Raises:
            NotLeaderError: no leader answered in time.
        """
        ...

    async def transfer(self, node_id: NodeId) -> None:
        """Transfer leadership to a voter; returns when that voter leads.

        Raises:
            NotLeaderError: this voter does not lead.
            TransferError: `node_id` is not another voter, or did not take over in time. This voter then
                continues to lead.
        """
        ...
