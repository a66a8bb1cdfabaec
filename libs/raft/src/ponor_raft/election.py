"""How a replica becomes leader, and when it helps another to become it.

What lives here: the election timer, the two rounds of an election and the answers to those of others.

Rules, none of which can be switched off (mixed settings wedged real clusters: etcd-io/etcd #8501):

1. A timer that runs out starts a pre-vote. It changes nothing anywhere: neither term nor vote. Only a pre-vote that a majority grants starts a vote.
2. Who hears a leader answers no candidate, whatever its term (the lease of a vote), unless the leader itself asked for the election. So a replica
   that was removed, or hears nobody, disturbs nobody.
3. A granted pre-vote carries the term that was asked about, and counts for a pre-candidate about that term alone. It never counts as a vote.
4. A candidate asks, and counts its own vote, when that vote is durable; so it has made its whole log durable too (writes end in order). Whoever is
   asked before that could grant a term that the candidate forgets in a crash, together with the end of its log; it would then collect the grant
   with a shorter log than it was given for.
5. A pre-vote is asked for again and again: the first question may have met a voter that was just starting, or one that had not missed the leader yet, and
   waiting for another timeout would leave the group without a leader for seconds. It promises nothing, so asking often is safe.
6. Votes are given even by those who do not know yet that they are voters, or do not know the candidate: the candidate's own configuration decides
   who counts. A learner that was promoted may be needed for the majority before it hears of it. Likewise, who is removed campaigns until the removal
   is committed, without counting itself.
7. A voter that learned from a leader of a committed entry which its own log lacks votes for nobody who lacks it too, and does not campaign until it has it
   (`HardState.floor`). It may have acknowledged that entry before its disk lost it: an older copy of the directory was put back, or the end of the log rotted.
   Correct replicas elect the same leaders with and without this rule.
"""

from __future__ import annotations

from enum import Enum

from ponor_raft.membership import ReplicaId
from ponor_raft.messages import VoteRequest, VoteResponse
from ponor_raft.ready import Role
from ponor_raft.replica import Replica


class Outcome(Enum):
    """How a round of an election stands."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


class Election:
    """The election timer and the round under way, if any."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._elapsed_ticks = 0
        self._timeout_ticks = 0
        self._suspected = False
        self._answers: dict[ReplicaId, bool] = {}
        self.restart_timer()

    def restart_timer(self) -> None:
        """From now, with a length drawn anew, so that replicas rarely campaign against each other twice."""
        election_ticks = self._replica.limits.election_ticks
        self._elapsed_ticks = 0
        self._suspected = False
        self._timeout_ticks = election_ticks + self._replica.draw(election_ticks)

    def heard_leader(self) -> None:
        """The leader of this term is there."""
        if self._suspected:
            self.restart_timer()
        self._elapsed_ticks = 0

    def suspect(self) -> None:
        """The owner has a hint that the leader is gone. If it is not, its next message mends everything."""
        suspicion_ticks = self._replica.limits.suspicion_ticks
        self._suspected = True
        self._timeout_ticks = min(
            self._timeout_ticks,
            self._elapsed_ticks + suspicion_ticks + self._replica.draw(suspicion_ticks + 1),
        )

    @property
    def hears_leader(self) -> bool:
        """Whether a leader was heard since the last tick."""
        return self._replica.leader is not None and self._elapsed_ticks == 0

    def in_lease(self) -> bool:
        """Whether a leader is heard, which forbids helping others. A leader that hears no majority steps down by itself."""
        if self._replica.role is Role.LEADER:
            return True
        heard = self._replica.leader is not None and not self._suspected
        return heard and self._elapsed_ticks < self._replica.limits.election_ticks

    def tick(self) -> bool:
        """True: campaign."""
        replica = self._replica
        self._elapsed_ticks += 1
        if not replica.may_campaign:
            return False
        if replica.role is Role.PRE_CANDIDATE and self._elapsed_ticks % replica.limits.heartbeat_ticks == 0:
            self._ask(replica.term + 1, pre_vote=True, transfer=False)
        if replica.role is Role.CANDIDATE and replica.own not in self._answers:
            return False  # its own vote is not durable yet: another campaign would wait for the same disk
        sole = replica.membership.voters == (replica.own,)
        return (sole and replica.role is Role.FOLLOWER) or self._elapsed_ticks >= self._timeout_ticks

    # --- campaigning ---

    def start_pre_vote(self) -> Outcome:
        """Ask whether a campaign would succeed."""
        replica = self._replica
        replica.role = Role.PRE_CANDIDATE
        replica.leader = None
        self.restart_timer()
        self._answers = {replica.own: True}
        self._ask(replica.term + 1, pre_vote=True, transfer=False)
        return self._outcome()

    def start_vote(self, *, transfer: bool) -> None:
        """Enter a new term and ask for it. The outcome is never known before `on_durable`."""
        replica = self._replica
        replica.enter_term(replica.term + 1)
        replica.role = Role.CANDIDATE
        replica.voted_for = replica.own
        self.restart_timer()
        self._answers = {}
        self._ask(replica.term, pre_vote=False, transfer=transfer)

    def on_durable(self) -> Outcome:
        """A write ended: perhaps the one of this candidate's own vote."""
        replica = self._replica
        if (
            replica.role is not Role.CANDIDATE
            or replica.own in self._answers
            or replica.outbox.durable_hard_state != replica.hard_state
        ):
            return Outcome.PENDING
        self._answers[replica.own] = True
        self.restart_timer()  # the requests leave now
        return self._outcome()

    def on_response(self, response: VoteResponse) -> Outcome:
        """An answer to this replica's requests, or a late one to those of an earlier round."""
        replica = self._replica
        if response.pre_vote:
            asked = replica.role is Role.PRE_CANDIDATE and response.term == (
                replica.term + 1 if response.granted else replica.term
            )
        else:
            asked = replica.role is Role.CANDIDATE and response.term == replica.term
        if not asked or response.sender not in replica.membership.voters:
            replica.drop("vote response of another round")
            return Outcome.PENDING
        if response.pre_vote:
            self._answers[response.sender] = response.granted  # asked again, it may have changed its mind
        else:
            self._answers.setdefault(response.sender, response.granted)
        return self._outcome()

    def _ask(self, term: int, *, pre_vote: bool, transfer: bool) -> None:
        replica = self._replica
        log = replica.log
        send = replica.outbox.send if pre_vote else replica.outbox.send_when_durable
        for voter in replica.membership.voters:
            if not self._answers.get(voter, voter == replica.own):
                send(VoteRequest(replica.own, voter, term, log.last_index, log.last_term, pre_vote, transfer))

    def _outcome(self) -> Outcome:
        membership = self._replica.membership
        answers = [self._answers[voter] for voter in membership.voters if voter in self._answers]
        if sum(answers) >= membership.quorum:
            return Outcome.WON
        if len(answers) - sum(answers) > len(membership.voters) - membership.quorum:
            return Outcome.LOST
        return Outcome.PENDING

    # --- answering ---

    def answer(self, request: VoteRequest) -> None:
        """Grant or refuse. The lease and the terms were looked at already; the term of a vote asked for is this replica's."""
        replica = self._replica
        free = replica.voted_for == request.sender or (replica.voted_for is None and replica.leader is None)
        asked_ahead = request.pre_vote and request.term > replica.term
        complete = (request.last_term, request.last_index) >= replica.required
        if not (complete and (free or asked_ahead)):
            self.refuse(request)
        elif request.pre_vote:
            replica.outbox.send(
                VoteResponse(replica.own, request.sender, request.term, pre_vote=True, granted=True)
            )
        else:
            replica.voted_for = request.sender
            self.restart_timer()
            replica.outbox.send_when_durable(
                VoteResponse(replica.own, request.sender, replica.term, pre_vote=False, granted=True)
            )

    def refuse(self, request: VoteRequest) -> None:
        """Promises nothing, so it may leave at once. It tells the term here, which the candidate may not know."""
        replica = self._replica
        replica.outbox.send(
            VoteResponse(replica.own, request.sender, replica.term, request.pre_vote, granted=False)
        )

    def validate(self) -> None:
        """Assert what must hold between two calls."""
        replica = self._replica
        if replica.role in {Role.CANDIDATE, Role.LEADER}:
            assert replica.voted_for == replica.own
        if replica.role in {Role.CANDIDATE, Role.PRE_CANDIDATE}:
            assert replica.leader is None
