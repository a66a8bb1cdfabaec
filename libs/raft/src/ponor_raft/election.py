"""Elections: the election timer, pre-vote and vote rounds, and responses to candidates.

The rules below are not configurable, because clusters whose replicas used different settings remained without
a leader (etcd-io/etcd #8501):

1. An expired timer starts a pre-vote, which changes neither term nor vote. Only a pre-vote granted by a
majority starts a vote.
2. A replica that hears a leader ignores candidates of any term (leader lease), unless the leader requested
   the election. So a removed or partitioned replica does not disrupt the others.
3. A granted pre-vote carries the requested term and counts only for a pre-candidate of that term, never as a
vote.
4. A candidate sends its requests, and counts its own vote, once that vote is durable. Because writes end in
   order, its whole log is then durable too. If it sent a request earlier, a voter could grant its vote, and
   then a crash could remove the candidate's term and the end of its log. The restarted candidate could count
   that vote for a shorter log.
5. A pre-candidate repeats its requests: the first one may have reached a voter that was just starting or
   still heard the leader. Waiting for another timeout would leave the group without a leader for seconds.
   Repeating is safe, because a granted pre-vote does not bind the voter.
6. Replicas grant votes even if they do not know that they are voters, or do not know the candidate: the
   candidate's configuration decides whose votes count. The vote of a promoted learner may be needed before
   the learner has received its promotion. For the same reason a removed replica campaigns until its removal
   is committed, without counting its own vote.
7. When a leader's message shows a voter that its own log lacks a committed entry, the voter refuses
   candidates whose logs lack the entry too, and does not campaign until it has the entry (`HardState.floor`).
   The voter may have acknowledged the entry before its disk lost it, because an operator restored an older
   copy of the directory or the tail of the log was corrupted. Without such a loss the rule does not change
   which replica is elected.
"""

from __future__ import annotations

from enum import Enum

from ponor_raft.membership import ReplicaId
from ponor_raft.messages import VoteRequest, VoteResponse
from ponor_raft.ready import Role
from ponor_raft.replica import Replica


class Outcome(Enum):
    """State of an election round."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


class Election:
    """The election timer and the current round, if any."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._elapsed_ticks = 0
        self._timeout_ticks = 0
        self._suspected = False
        self._answers: dict[ReplicaId, bool] = {}
        self.restart_timer()

    def restart_timer(self) -> None:
        """Restart the timer with a new random length, so that two replicas rarely campaign together twice."""
        election_ticks = self._replica.limits.election_ticks
        self._elapsed_ticks = 0
        self._suspected = False
        self._timeout_ticks = election_ticks + self._replica.draw(election_ticks)

    def heard_leader(self) -> None:
        """Record that the leader of this term is alive."""
        if self._suspected:
            self.restart_timer()
        self._elapsed_ticks = 0

    def suspect(self) -> None:
        """Shorten the timer, because the caller assumes that the leader is gone.

        If the leader is alive, its next message restarts the timer.
        """
        suspicion_ticks = self._replica.limits.suspicion_ticks
        self._suspected = True
        self._timeout_ticks = min(
            self._timeout_ticks,
            self._elapsed_ticks + suspicion_ticks + self._replica.draw(suspicion_ticks + 1),
        )

    @property
    def hears_leader(self) -> bool:
        """Whether the leader was heard since the last tick."""
        return self._replica.leader is not None and self._elapsed_ticks == 0

    def in_lease(self) -> bool:
        """Whether the leader lease forbids granting votes.

        At a leader the lease always holds, because a leader without a majority steps down (check-quorum).
        """
        if self._replica.role is Role.LEADER:
            return True
        heard = self._replica.leader is not None and not self._suspected
        return heard and self._elapsed_ticks < self._replica.limits.election_ticks

    def tick(self) -> bool:
        """Advance the timer; return whether to campaign."""
        replica = self._replica
        self._elapsed_ticks += 1
        if not replica.may_campaign:
            return False
        if replica.role is Role.PRE_CANDIDATE and self._elapsed_ticks % replica.limits.heartbeat_ticks == 0:
            self._ask(replica.term + 1, pre_vote=True, transfer=False)
        if replica.role is Role.CANDIDATE and replica.own not in self._answers:
            return False  # its own vote is not durable yet; a new campaign would wait for the same disk
        sole = replica.membership.voters == (replica.own,)
        return (sole and replica.role is Role.FOLLOWER) or self._elapsed_ticks >= self._timeout_ticks

    # --- campaigning ---

    def start_pre_vote(self) -> Outcome:
        """Start a pre-vote."""
        replica = self._replica
        replica.role = Role.PRE_CANDIDATE
        replica.leader = None
        self.restart_timer()
        self._answers = {replica.own: True}
        self._ask(replica.term + 1, pre_vote=True, transfer=False)
        return self._outcome()

    def start_vote(self, *, transfer: bool) -> None:
        """Enter a new term and request votes. The election is decided in `on_durable` or later."""
        replica = self._replica
        replica.enter_term(replica.term + 1)
        replica.role = Role.CANDIDATE
        replica.voted_for = replica.own
        self.restart_timer()
        self._answers = {}
        self._ask(replica.term, pre_vote=False, transfer=transfer)

    def on_durable(self) -> Outcome:
        """Handle the end of a write, which may include this candidate's own vote."""
        replica = self._replica
        if (
            replica.role is not Role.CANDIDATE
            or replica.own in self._answers
            or replica.outbox.durable_hard_state != replica.hard_state
        ):
            return Outcome.PENDING
        self._answers[replica.own] = True
        self.restart_timer()  # the vote requests are sent only now
        return self._outcome()

    def on_response(self, response: VoteResponse) -> Outcome:
        """Handle a response to a request of this round or of an earlier one."""
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
            self._answers[response.sender] = response.granted  # a repeated request may get another answer
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
        """Grant or refuse a vote.

        The caller has checked the lease and the terms; a request for a vote has this replica's term.
        """
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
        """Send a refusal. It does not depend on durable state, so it does not wait for the disk.

        It contains the local term, which the candidate may not have seen.
        """
        replica = self._replica
        replica.outbox.send(
            VoteResponse(replica.own, request.sender, replica.term, request.pre_vote, granted=False)
        )

    def validate(self) -> None:
        """Assert the invariants between calls."""
        replica = self._replica
        if replica.role in {Role.CANDIDATE, Role.LEADER}:
            assert replica.voted_for == replica.own
        if replica.role in {Role.CANDIDATE, Role.PRE_CANDIDATE}:
            assert replica.leader is None
