"""Arbitrary messages from peers neither raise errors nor break invariants, and all limits hold."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ponor_raft.entry import Entry, HardState, SnapshotMeta
from ponor_raft.errors import NotLeaderError, ProposalsFullError
from ponor_raft.limits import RaftLimits
from ponor_raft.membership import Membership, ReplicaId
from ponor_raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    ReadIndexRequest,
    ReadIndexResponse,
    SnapshotAck,
    SnapshotChunk,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from ponor_raft.node import RaftNode
from ponor_raft.ready import Role
from ponor_raft.stored import StoredState

from libs.raft.tests.raft_world import replica_id

OWN = replica_id(1)
GROUP = Membership((replica_id(1), replica_id(2), replica_id(3)))
BASE = SnapshotMeta(2, 1, GROUP, bytes(16), 10)
SMALL = st.integers(0, 8)
IDS = st.sampled_from(
    [replica_id(1), replica_id(2), replica_id(3), replica_id(4), ReplicaId(1, b"another directory"[:16])]
)
ENTRY = st.builds(Entry, SMALL, SMALL, st.binary(max_size=3), st.sampled_from([None, None, GROUP]))
META = st.builds(SnapshotMeta, SMALL, SMALL, st.just(GROUP), st.just(bytes(16)), SMALL)
ENDS = {"sender": IDS, "to": st.just(OWN), "term": SMALL}


def chained(first: int, terms: list[int]) -> tuple[Entry, ...]:
    return tuple(Entry(first + offset, term, b"") for offset, term in enumerate(sorted(terms)))


ENTRIES = st.lists(ENTRY, max_size=4).map(tuple) | st.builds(chained, SMALL, st.lists(SMALL, max_size=4))
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        VoteRequest, **ENDS, last_index=SMALL, last_term=SMALL, pre_vote=st.booleans(), transfer=st.booleans()
    ),
    st.builds(VoteResponse, **ENDS, pre_vote=st.booleans(), granted=st.booleans()),
    st.builds(AppendRequest, **ENDS, prev_index=SMALL, prev_term=SMALL, entries=ENTRIES, commit=SMALL),
    st.builds(
        AppendResponse,
        **ENDS,
        match_index=SMALL,
        rejected=st.booleans(),
        rejected_index=SMALL,
        hint_index=SMALL,
        hint_term=SMALL,
    ),
    st.builds(HeartbeatRequest, **ENDS, commit=SMALL, round=SMALL),
    st.builds(HeartbeatResponse, **ENDS, round=SMALL),
    st.builds(TimeoutNow, **ENDS),
    st.builds(SnapshotChunk, **ENDS, meta=META, offset=SMALL, data=st.binary(max_size=4)),
    st.builds(SnapshotAck, **ENDS, index=SMALL, next_offset=SMALL, installed=st.booleans()),
    st.builds(ReadIndexRequest, **ENDS, context=SMALL),
    st.builds(ReadIndexResponse, **ENDS, context=SMALL, index=SMALL),
)


def a_node(limits: RaftLimits | None = None, membership: Membership = GROUP) -> RaftNode:
    base = SnapshotMeta(2, 1, membership, bytes(16), 10)
    state = StoredState(HardState(2), base, (Entry(3, 1, b"a"), Entry(4, 2, b"b")), 2, (2, 1))
    return RaftNode(OWN, limits or RaftLimits(election_ticks=4, heartbeat_ticks=1), state, lambda _: 0)


def drain(node: RaftNode) -> None:
    while (ready := node.ready()) is not None:
        node.validate()
        if ready.persist is not None:
            node.persisted(ready.persist.sequence)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(MESSAGES | st.integers(1, 5), max_size=30))
def test_any_messages(steps: list[Message | int]) -> None:
    """Generate messages that no replica would send, between ticks."""
    node = a_node()
    for step in steps:
        if isinstance(step, int):
            for _ in range(step):
                node.tick()
        else:
            node.step(step)
        node.validate()
        drain(node)
        node.validate()


def a_leader(limits: RaftLimits) -> RaftNode:
    """A leader of a group of one, which needs no answers."""
    node = a_node(limits, Membership((OWN,)))
    node.tick()
    drain(node)
    assert node.role is Role.LEADER
    node.propose(b"")
    drain(node)
    assert node.commit_index == node.last_index
    return node


def test_messages_for_another_directory_are_dropped() -> None:
    node = a_node()
    node.step(HeartbeatRequest(replica_id(2), ReplicaId(1, bytes(16)), 7, 0, 1))
    assert node.term == 2
    assert node.dropped["not for this replica"] == 1


def test_proposals_are_bounded() -> None:
    node = a_leader(RaftLimits(uncommitted_entries_max=3, uncommitted_bytes_max=100))
    for _ in range(3):
        node.propose(b"x")
    with pytest.raises(ProposalsFullError, match="wait for commits"):
        node.propose(b"x")
    drain(node)
    node.propose(b"x" * 1000)
    with pytest.raises(ProposalsFullError, match="wait for commits"):
        node.propose(b"x")
    drain(node)
    assert node.propose(b"x").index == node.last_index


def test_memory_is_bounded_until_the_log_is_compacted() -> None:
    node = a_leader(RaftLimits(window_entries_max=6))
    node.propose(b"x")
    node.propose(b"x")
    node.propose(b"x")
    with pytest.raises(ProposalsFullError, match="take a snapshot"):
        node.propose(b"x")
    drain(node)
    index = node.commit_index
    node.snapshot_available(SnapshotMeta(index, node.term, node.membership, bytes(16), 0))
    node.compact(index)
    node.propose(b"x")
    assert node.propose(b"x").index == index + 2


def test_entries_without_a_snapshot_are_not_compacted() -> None:
    node = a_leader(RaftLimits())
    with pytest.raises(AssertionError, match="no snapshot contains index"):
        node.compact(node.commit_index)
    with pytest.raises(AssertionError, match="undelivered entries"):
        node.snapshot_available(SnapshotMeta(node.last_index + 1, 1, GROUP, bytes(16), 0))


def test_reads_are_bounded() -> None:
    node = a_node(RaftLimits(reads_max=2))
    node.step(HeartbeatRequest(replica_id(2), OWN, 2, 0, 1))
    for context in range(4):
        node.read_index(context)
    ready = node.ready()
    assert ready is not None
    assert [(read.context, read.index) for read in ready.reads] == [(2, None), (3, None)]
    assert sum(isinstance(message, ReadIndexRequest) for message in ready.messages) == 2


def test_a_forwarded_read_times_out() -> None:
    node = a_node()
    node.step(HeartbeatRequest(replica_id(2), OWN, 2, 0, 1))
    node.read_index(7)
    drain(node)
    for _ in range(4):
        node.step(HeartbeatRequest(replica_id(2), OWN, 2, 0, 1))
        node.tick()
    ready = node.ready()
    assert ready is not None
    assert [(read.context, read.index) for read in ready.reads] == [(7, None)]


def test_an_answer_to_a_previous_life_is_ignored() -> None:
    """Contexts may repeat after a restart; the ids in messages do not."""
    draws = iter([0, 5])
    state = StoredState(HardState(2), BASE, (), 2, (2, 1))
    node = RaftNode(OWN, RaftLimits(), state, lambda _: next(draws))
    node.step(HeartbeatRequest(replica_id(2), OWN, 2, 0, 1))
    node.read_index(1)
    ready = node.ready()
    assert ready is not None
    (request,) = (message for message in ready.messages if isinstance(message, ReadIndexRequest))
    node.step(ReadIndexResponse(replica_id(2), OWN, 2, 1, 3))
    assert node.dropped["late read index"] == 1
    node.step(ReadIndexResponse(replica_id(2), OWN, 2, request.context, 3))
    ready = node.ready()
    assert ready is not None
    assert [(read.context, read.index) for read in ready.reads] == [(1, 3)]


def test_followers_name_the_leader() -> None:
    node = a_node()
    with pytest.raises(NotLeaderError, match="no known leader"):
        node.propose(b"x")
    node.step(HeartbeatRequest(replica_id(3), OWN, 2, 0, 1))
    with pytest.raises(NotLeaderError, match="node 3 leads"):
        node.propose(b"x")


def test_persists_end_in_the_order_they_were_given() -> None:
    node = a_leader(RaftLimits())
    node.propose(b"a")
    first = node.ready()
    node.propose(b"b")
    second = node.ready()
    assert first is not None
    assert second is not None
    assert first.persist is not None
    assert second.persist is not None
    with pytest.raises(AssertionError, match="must end before"):
        node.persisted(second.persist.sequence)


def test_a_commit_index_does_not_apply_to_entries_beyond_the_message() -> None:
    """Entries behind those of the message may come from another leader."""
    node = a_node()
    node.step(AppendRequest(replica_id(2), OWN, 3, 3, 1, (), 4))
    assert (node.commit_index, node.last_index) == (3, 4)


def test_a_snapshot_brings_its_membership() -> None:
    four = Membership((*GROUP.voters, replica_id(4)))
    node = a_node()
    node.step(AppendRequest(replica_id(2), OWN, 3, 4, 2, (Entry(5, 3, b"", four),), 2))
    assert node.membership == four
    drain(node)
    node.restore(SnapshotMeta(9, 3, GROUP, bytes(16), 10))
    node.validate()
    assert (node.membership, node.membership_index, node.first_index) == (GROUP, 9, 10)


def test_a_snapshot_received_among_committed_entries_is_not_delivered_again() -> None:
    """The owner is at the snapshot; its entries must not be delivered again."""
    node = a_node()
    node.step(AppendRequest(replica_id(2), OWN, 3, 4, 2, (Entry(5, 3, b"c"), Entry(6, 3, b"d")), 6))
    assert node.commit_index == 6
    node.restore(SnapshotMeta(5, 3, GROUP, bytes(16), 10))
    node.validate()
    ready = node.ready()
    assert ready is not None
    assert ready.persist is not None
    assert [entry.index for entry in ready.persist.entries] == [5, 6]
    node.persisted(ready.persist.sequence)
    ready = node.ready()
    assert ready is not None
    assert [entry.index for entry in ready.committed] == [6]
    node.restore(SnapshotMeta(4, 2, GROUP, bytes(16), 10))
    node.validate()
    assert node.commit_index == 6


def test_a_chunk_waits_until_its_term_is_durable() -> None:
    node = a_node()
    chunk = SnapshotChunk(replica_id(2), OWN, 5, SnapshotMeta(9, 5, GROUP, bytes(16), 4), 0, b"abcd")
    node.step(chunk)
    assert node.dropped["chunk before its term is durable"] == 1
    drain(node)
    node.step(chunk)
    node.step(chunk)
    ready = node.ready()
    assert ready is not None
    assert ready.chunks == (chunk,)


def test_a_full_window_accepts_the_entries_needed_for_compaction() -> None:
    """Uncommitted entries and the opening entry of a term are accepted beyond the limit; others
    wait until committed ones are compacted.
    """
    leader = replica_id(2)
    node = a_node(RaftLimits(window_entries_max=4))

    def append(term: int, first: int, prev_term: int, count: int, commit: int) -> int:
        entries = tuple(Entry(first + at, term, b"x") for at in range(count))
        node.step(AppendRequest(leader, OWN, term, first - 1, prev_term, entries, commit))
        drain(node)
        return node.last_index

    begin, prev = node.last_index + 1, node.last_term
    assert append(2, begin, prev, 10, 0) == begin + 9, "the commit index covers none of them"
    assert append(2, begin + 10, 2, 1, begin + 9) == begin + 10
    assert append(2, begin + 11, 2, 1, begin + 10) == begin + 10, "committed ones fill the window"
    assert node.dropped["window full"] == 1
    assert node.commit_index == begin + 10, "the commit index advances without room too"
    assert append(3, begin + 11, 2, 2, begin + 10) == begin + 11, "only the opening entry is accepted"
    node.snapshot_available(SnapshotMeta(begin + 10, 2, node.membership, bytes(16), 0))
    node.compact(begin + 10)
    assert append(3, begin + 12, 3, 1, begin + 11) == begin + 12
