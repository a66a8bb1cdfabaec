"""Each invariant of a Raft group detects a violation; and the disk that the invariants rely on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ponor_cluster_simulation.raft_cluster.cluster import RaftCluster, run_raft
from ponor_cluster_simulation.raft_cluster.disk import RaftDisk
from ponor_cluster_simulation.raft_cluster.invariants import InvariantError, RaftInvariants
from ponor_cluster_simulation.raft_cluster.replica import Replica, blank_disk
from ponor_raft.entry import Entry, HardState, SnapshotMeta
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.messages import AppendResponse, VoteResponse
from ponor_raft.ready import Persist

ONE, TWO, THREE = (ReplicaId(number, bytes(16)) for number in (1, 2, 3))


@pytest.fixture(scope="module")
def cluster() -> RaftCluster:
    """The end of a correct run with at least two replicas."""
    clusters = map(run_raft, range(20))
    return next(each for each in clusters if sum(one.node is not None for one in each.replicas.values()) > 1)


def leader_of(cluster: RaftCluster) -> Replica:
    return next(each for each in cluster.replicas.values() if each.node is not None and each.node.is_leader)


def two_leaders(known: RaftInvariants, leader: Replica, other: Replica) -> None:
    assert leader.node is not None
    known.leads(other, leader.node, leader.node.term)


def two_entries_of_one_term(known: RaftInvariants, leader: Replica, _: Replica) -> None:
    term, _data = known.committed[-1]
    known.wrote(leader, (Entry(known.commit_index, term, b"another"),), None)


def another_entry_applied(known: RaftInvariants, leader: Replica, _: Replica) -> None:
    known.applied(leader, Entry(1, known.committed[0][0] + 1, b""))


def a_commit_that_falls(known: RaftInvariants, leader: Replica, _: Replica) -> None:
    assert leader.node is not None
    known._seen[leader.own, leader.life] = (leader.node.commit_index + 1, 0)
    known.look(leader, leader.node)


def a_leader_without_what_is_committed(known: RaftInvariants, _: Replica, other: Replica) -> None:
    assert other.node is not None
    known.committed.append((1, b""))
    known._committed_in.append(other.node.term)
    try:
        known.leads(other, other.node, other.node.term + 1)
    finally:
        known.committed.pop()
        known._committed_in.pop()


def applied_beyond_commit(known: RaftInvariants, leader: Replica, _: Replica) -> None:
    assert leader.node is not None
    index, leader.state.index = leader.state.index, leader.node.commit_index + 1
    try:
        known.look(leader, leader.node)
    finally:
        leader.state.index = index


def acknowledged_and_not_durable(known: RaftInvariants, leader: Replica, other: Replica) -> None:
    term = leader.disk.hard_state.term
    known.sends(other, AppendResponse(other.own, leader.own, term, other.disk.last_index + 1))


def voted_and_not_durable(known: RaftInvariants, leader: Replica, other: Replica) -> None:
    term = other.disk.hard_state.term + 1
    known.sends(other, VoteResponse(other.own, leader.own, term, pre_vote=False, granted=True))


def a_vote_taken_back(known: RaftInvariants, leader: Replica, other: Replica) -> None:
    known.hard_state("x", HardState(5, leader.own), HardState(5, other.own))


def a_term_that_falls(known: RaftInvariants, leader: Replica, _: Replica) -> None:
    known.hard_state("x", HardState(5, leader.own), HardState(4, leader.own))


def two_voters_at_once(known: RaftInvariants, leader: Replica, _: Replica) -> None:
    assert leader.node is not None
    known.changes(leader, leader.node, Membership((ONE, TWO, THREE)), Membership((ONE,)), settled=True)


def a_change_too_early(known: RaftInvariants, leader: Replica, _: Replica) -> None:
    assert leader.node is not None
    known.changes(leader, leader.node, Membership((ONE, TWO)), Membership((ONE,)), settled=False)


def another_state(known: RaftInvariants, leader: Replica, _: Replica) -> None:
    known.digest(leader, leader.state.index, b"another")


def a_snapshot_of_the_future(known: RaftInvariants, leader: Replica, _: Replica) -> None:
    known.snapshot(leader, SnapshotMeta(known.commit_index + 1, 1, Membership((ONE,)), bytes(16), 0))


def a_stale_read(known: RaftInvariants, leader: Replica, _: Replica) -> None:
    known.read(leader, known.acknowledged_index - 1, known.acknowledged_index)


@pytest.mark.parametrize(
    ("number", "break_it"),
    [
        (1, two_leaders),
        (2, two_entries_of_one_term),
        (3, another_entry_applied),
        (4, a_commit_that_falls),
        (5, a_leader_without_what_is_committed),
        (6, applied_beyond_commit),
        (7, acknowledged_and_not_durable),
        (7, voted_and_not_durable),
        (8, a_vote_taken_back),
        (8, a_term_that_falls),
        (9, two_voters_at_once),
        (9, a_change_too_early),
        (10, another_state),
        (10, a_snapshot_of_the_future),
        (11, a_stale_read),
    ],
)
def test_a_violation_names_its_invariant(
    number: int, break_it: Callable[[RaftInvariants, Replica, Replica], None], cluster: RaftCluster
) -> None:
    leader = leader_of(cluster)
    other = next(each for each in cluster.replicas.values() if each.node is not None and each is not leader)
    with pytest.raises(InvariantError, match=f"^invariant {number}: "):
        break_it(cluster.invariants, leader, other)


# --- the disk ---


def entries(first: int, count: int, term: int) -> tuple[Entry, ...]:
    return tuple(Entry(index, term, b"") for index in range(first, first + count))


def persist(sequence: int, first: int, count: int, term: int) -> Persist:
    return Persist(sequence, HardState(term, ONE), entries(first, count, term), ())


def terms(disk: RaftDisk) -> list[int]:
    return [entry.term for entry in disk.entries]


@given(seed=st.integers(0, 1000), written=st.integers(0, 3))
def test_a_crash_keeps_ended_writes_and_a_prefix_of_the_others(seed: int, written: int) -> None:
    disk, ended = blank_disk(), list[int]()
    whole: list[int] = []
    for sequence in range(1, 4):
        disk.write(persist(sequence, 2 * sequence - 1, 2, sequence), partial(ended.append, sequence))
        whole += [sequence, sequence]
    for _ in range(written):
        disk.end_oldest()
    disk.crash(Random(seed))
    assert ended == list(range(1, written + 1)), "no write is reported after a crash"
    assert terms(disk) == whole[: len(disk.entries)]
    assert len(disk.entries) >= 2 * written
    assert disk.hard_state.term >= max([0, *terms(disk)]), "the term of every durable entry is durable"
    assert disk.writes == 0


def test_a_rewritten_entry_cuts_the_log() -> None:
    disk = blank_disk()
    for write in (persist(1, 1, 4, 1), persist(2, 3, 1, 2)):
        disk.write(write, lambda: None)
        disk.end_oldest()
    assert terms(disk) == [1, 1, 2]
    assert disk.holds(3, 2)
    assert not disk.holds(4, 1)


def test_a_gap_is_refused() -> None:
    disk = blank_disk()
    disk.write(persist(1, 2, 1, 1), lambda: None)
    with pytest.raises(AssertionError, match="leaves a hole"):
        disk.end_oldest()
