"""State shared by all parts of the core: identity, term and vote, role, known leader, log and outbox.

The other modules keep their own state (timers, votes, progress, reads) and make the decisions; `RaftNode`
calls them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ponor_raft.configurations import Configurations
from ponor_raft.entry import HardState
from ponor_raft.limits import RaftLimits
from ponor_raft.log_window import LogWindow
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.outbox import Outbox
from ponor_raft.ready import Role


class Replica:
    """Shared state. `draw(n)` returns an int in [0, n); `dropped` counts ignored messages by reason."""

    __slots__ = (
        "configurations",
        "draw",
        "dropped",
        "floor",
        "leader",
        "limits",
        "log",
        "outbox",
        "own",
        "role",
        "term",
        "voted_for",
    )

    def __init__(
        self,
        own: ReplicaId,
        limits: RaftLimits,
        draw: Callable[[int], int],
        hard_state: HardState,
        log: LogWindow,
        configurations: Configurations,
    ) -> None:
        self.own = own
        self.limits = limits
        self.draw = draw
        # A snapshot may be durable although the term in which it was received is not. In that case this
        # replica has not voted in that term, because a vote is sent only after its term is durable.
        self.term = max(hard_state.term, log.last_term)
        self.voted_for = hard_state.voted_for if self.term == hard_state.term else None
        self.floor = hard_state.floor
        self.role = Role.FOLLOWER
        self.leader: ReplicaId | None = None
        self.log = log
        self.configurations = configurations
        self.outbox = Outbox(hard_state)
        self.dropped: Counter[str] = Counter()

    @property
    def membership(self) -> Membership:
        return self.configurations.current

    @property
    def is_voter(self) -> bool:
        return self.own in self.configurations.current.voters

    @property
    def may_campaign(self) -> bool:
        """Whether this replica is a voter (or was removed, but the removal is not committed) and its log
        reaches the floor.

        The entry of the removal may be only in the removed voter's log; then no other candidate can win. A
        removed voter does not count its own vote (Ongaro's dissertation, section 4.2.2).
        """
        is_complete = (self.log.last_term, self.log.last_index) >= self.floor
        return is_complete and self.configurations.may_decide(self.own, self.log.commit)

    @property
    def required(self) -> tuple[int, int]:
        """Minimum (term, index) of the last entry of a candidate's log."""
        return max((self.log.last_term, self.log.last_index), self.floor)

    def raise_floor(self, term: int, index: int) -> None:
        """Require that candidates have the committed entry (`term`, `index`), if this log ends before it.

        This matters if the replica had acknowledged the entry and its disk lost it. For a follower that only
        lags, the floor changes no election: the winner's log contains all committed entries anyway.
        """
        if self.required < (term, index):
            self.floor = (term, index)

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.voted_for, self.floor)

    def drop(self, reason: str) -> None:
        """Count an ignored message."""
        self.dropped[reason] += 1

    def enter_term(self, term: int) -> None:
        """Enter a newer term: no vote and no known leader."""
        assert term > self.term
        self.term = term
        self.voted_for = None
        self.leader = None
