"""A voter whose disk lost acknowledged entries, because an older copy of its directory was restored
or the end of its log was damaged. No committed entry is lost.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from ponor_raft.entry import Entry, HardState, SnapshotMeta
from ponor_raft.limits import RaftLimits
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.messages import AppendRequest, Message, TimeoutNow, VoteRequest, VoteResponse
from ponor_raft.node import RaftNode
from ponor_raft.ready import LostEntries, Role
from ponor_raft.stored import StoredState

LEADER, VOTER, LAGGARD = IDS = tuple(ReplicaId(number, bytes([number]) * 16) for number in (1, 2, 3))
BASE = SnapshotMeta(0, 0, Membership(IDS), bytes(16), 0)
LIMITS = RaftLimits(election_ticks=6, heartbeat_ticks=2)


def log_to(index: int, term: int = 1) -> list[Entry]:
    return [Entry(each, term, b"x") for each in range(1, index + 1)]


class Owner:
    """A replica with a fast disk."""

    def __init__(self, own: ReplicaId, entries: list[Entry], hard_state: HardState) -> None:
        self.entries = list(entries)
        self.hard_state = hard_state
        self.lost: list[LostEntries] = []
        stored = StoredState(hard_state, BASE, tuple(entries), 0, (0, 0))
        self.node = RaftNode(own, LIMITS, stored, lambda below: 0)

    def restarted(self) -> Owner:
        return Owner(self.node.own, self.entries, self.hard_state)

    def receive(self, *messages: Message) -> list[Message]:
        """Deliver messages; return the answers after everything is on its disk."""
        said: list[Message] = []
        for message in messages:
            self.node.step(message)
        while (ready := self.node.ready()) is not None:
            self.node.validate()
            said += ready.messages
            if ready.lost is not None:
                self.lost.append(ready.lost)
            if ready.persist is not None:
                self.hard_state = ready.persist.hard_state or self.hard_state
                for entry in ready.persist.entries:
                    del self.entries[entry.index - 1 :]
                    self.entries.append(entry)
                self.node.persisted(ready.persist.sequence)
                said += ready.persist.messages
            if self.node.is_leader and self.node.last_term < self.node.term:
                self.node.propose(b"")
        return said

    def campaign(self) -> list[Message]:
        """Return its messages after a long time without any other."""
        said: list[Message] = []
        for _ in range(3 * LIMITS.election_ticks):
            self.node.tick()
            said += self.receive()
        return said


def probe(*, last: int, commit: int, term: int = 1, acknowledged: int = 0) -> AppendRequest:
    """The first message of a leader on a new stream."""
    return AppendRequest(LEADER, VOTER, term, last, 1, (), commit, 1, acknowledged)


def vote_request(candidate: ReplicaId, last: int, *, pre_vote: bool, term: int = 2) -> VoteRequest:
    return VoteRequest(candidate, VOTER, term, last, 1, pre_vote, transfer=True)


def is_granted(said: list[Message]) -> bool:
    (answer,) = [each for each in said if isinstance(each, VoteResponse)]
    return answer.granted


def test_it_refuses_candidates_without_its_acknowledged_entries_even_after_another_restart() -> None:
    """The leader and this voter had acknowledged entry 9. The voter's log now ends at 5; the leader
    crashes, and a voter at 7 campaigns.
    """
    voter = Owner(VOTER, log_to(5), HardState(1, None))
    voter.receive(probe(last=9, commit=9, acknowledged=9))
    for each in (voter, voter.restarted()):
        for last in (5, 7, 8):
            assert not is_granted(each.receive(vote_request(LAGGARD, last, pre_vote=True)))
        assert not is_granted(each.receive(vote_request(LAGGARD, 8, pre_vote=False)))
        assert is_granted(each.receive(vote_request(LEADER, 9, pre_vote=False)))


def test_it_does_not_campaign_before_it_has_the_entries_again() -> None:
    voter = Owner(VOTER, log_to(5), HardState(1, None))
    voter.receive(probe(last=9, commit=9, acknowledged=9))
    voter.receive(TimeoutNow(LEADER, VOTER, 1))
    for each in (voter, voter.restarted()):
        assert each.campaign() == []
        assert each.node.role is Role.FOLLOWER
    again = tuple(log_to(9)[5:])
    voter.receive(AppendRequest(LEADER, VOTER, 1, 5, 1, again, 9, 1, 9))
    assert any(isinstance(each, VoteRequest) for each in voter.restarted().campaign())


def test_it_keeps_its_lost_vote_for_the_leader_of_the_term() -> None:
    """It may have elected the leader in this term. A candidate that lost this election campaigns again."""
    voter = Owner(VOTER, log_to(5), HardState(0, None))
    voter.receive(probe(last=5, commit=5))
    again = voter.restarted()
    assert not is_granted(again.receive(vote_request(LAGGARD, 9, pre_vote=False, term=1)))


def test_the_loss_is_reported_once_and_not_for_a_voter_that_only_lags() -> None:
    lagging = Owner(VOTER, log_to(5), HardState(1, None))
    lagging.receive(probe(last=9, commit=9), probe(last=9, commit=9, acknowledged=5))
    assert lagging.lost == []
    voter = Owner(VOTER, log_to(5), HardState(1, None))
    voter.receive(probe(last=9, commit=9, acknowledged=8), probe(last=9, commit=9, acknowledged=8))
    assert voter.lost == [LostEntries(5, 8)]


def test_a_commit_index_with_a_term_above_the_leaders_is_ignored() -> None:
    """Otherwise a voter would wait forever for an entry that does not exist."""
    voter = Owner(VOTER, log_to(5), HardState(1, None))
    voter.receive(AppendRequest(LEADER, VOTER, 1, 5, 1, (), 5, 7))
    assert voter.node.dropped["malformed append"] == 1
    assert voter.hard_state.floor == (0, 0)


def settle(owners: dict[ReplicaId, Owner], *absent: ReplicaId) -> None:
    """Deliver all messages except those from or to an absent replica."""
    waiting = [message for owner in owners.values() for message in owner.receive()]
    while waiting:
        passed = [each for each in waiting if not {each.sender, each.to} & set(absent)]
        waiting = [message for each in passed for message in owners[each.to].receive(each)]


def test_an_entry_acknowledged_by_two_of_three_survives_an_old_copy_of_one_and_the_loss_of_the_other() -> (
    None
):
    owners = {own: Owner(own, [], HardState()) for own in IDS}
    for owner in owners.values():
        owner.receive()
    for _ in range(2 * LIMITS.election_ticks):
        owners[LEADER].node.tick()
        settle(owners)
    leader = owners[LEADER]
    assert leader.node.is_leader
    older = list(owners[VOTER].entries), owners[VOTER].hard_state
    leader.node.propose(b"acknowledged")
    settle(owners, LAGGARD)
    acknowledged = leader.node.commit_index
    assert acknowledged == leader.node.last_index

    owners[VOTER] = Owner(VOTER, *older)
    leader.node.peer_restarted(VOTER)
    (heard,) = [each for each in leader.receive() if each.to == VOTER]
    owners[VOTER].receive(heard)
    assert owners[VOTER].lost == [LostEntries(acknowledged - 1, acknowledged)]
    for _ in range(20 * LIMITS.election_ticks):  # the leader crashed
        for own in (VOTER, LAGGARD):
            owners[own].node.tick()
        settle(owners, LEADER)
        assert not any(owners[own].node.is_leader for own in (VOTER, LAGGARD))
    owners[LEADER] = leader.restarted()
    for _ in range(20 * LIMITS.election_ticks):
        for own in IDS:
            owners[own].node.tick()
        settle(owners)
    (elected,) = [owner for owner in owners.values() if owner.node.is_leader]
    assert [entry.data for entry in elected.entries if entry.data] == [b"acknowledged"]
    assert {owner.node.commit_index for owner in owners.values()} == {elected.node.last_index}


POSITIONS = st.tuples(st.integers(1, 3), st.integers(1, 9))


@given(own_index=st.integers(0, 9), floors=st.lists(POSITIONS, max_size=4), candidate=POSITIONS)
def test_a_vote_needs_the_own_log_and_every_committed_entry_that_was_announced(
    own_index: int, floors: list[tuple[int, int]], candidate: tuple[int, int]
) -> None:
    voter = Owner(VOTER, log_to(own_index), HardState(3, None))
    for term, index in floors:
        voter.receive(AppendRequest(LEADER, VOTER, 3, 99, 3, (), index, term))
    own = (1, own_index) if own_index else (0, 0)
    request = VoteRequest(LAGGARD, VOTER, 4, candidate[1], candidate[0], pre_vote=False, transfer=True)
    for each in (voter.restarted(), voter):
        assert is_granted(each.receive(request)) == (candidate >= max([own, *floors]))
