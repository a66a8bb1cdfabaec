"""Validation of the stored state at a restart."""

from __future__ import annotations

import pytest
from ponor_raft.entry import Entry, HardState, SnapshotMeta
from ponor_raft.limits import RaftLimits
from ponor_raft.membership import Membership
from ponor_raft.node import RaftNode
from ponor_raft.stored import StoredState

from libs.raft.tests.raft_world import replica_id

GROUP = Membership((replica_id(1), replica_id(2), replica_id(3)))


def stored(
    *,
    base: tuple[int, int],
    terms: list[int],
    first: int,
    before_term: int,
    commit: int | None = None,
    term: int = 9,
) -> StoredState:
    meta = SnapshotMeta(*base, GROUP, bytes(16), 0)
    entries = tuple(Entry(first + offset, each, b"") for offset, each in enumerate(terms))
    return StoredState(
        HardState(term), meta, entries, base[0] if commit is None else commit, (first - 1, before_term)
    )


def test_an_empty_state_is_valid() -> None:
    log = StoredState(HardState(), SnapshotMeta(0, 0, GROUP, bytes(16), 0), (), 0, (0, 0)).open_log()
    assert (log.first_index, log.last_index) == (1, 0)


def test_entries_after_the_snapshot_are_kept() -> None:
    log = stored(base=(5, 2), terms=[2, 3], first=6, before_term=2).open_log()
    assert (log.first_index, log.last_index, log.durable, log.commit, log.delivered) == (6, 7, 7, 5, 5)


def test_trailing_entries_stay_for_slow_followers() -> None:
    log = stored(base=(5, 2), terms=[1, 1, 2, 2, 3], first=3, before_term=1).open_log()
    assert (log.first_index, log.last_index, log.commit) == (3, 7, 5)


def test_committed_entries_are_delivered_again() -> None:
    log = stored(base=(5, 2), terms=[2, 3], first=6, before_term=2, commit=7).open_log()
    assert [entry.index for entry in log.deliver()] == [6, 7]


@pytest.mark.parametrize(
    ("base", "terms", "first", "before_term"),
    [
        ((9, 4), [1, 1], 3, 1),  # the entries end before the received snapshot
        ((4, 4), [3, 3, 3], 3, 3),  # they have another entry at its index
        ((5, 4), [3, 3], 6, 3),  # they follow another entry
    ],
)
def test_a_log_replaced_by_a_received_snapshot_is_dropped(
    base: tuple[int, int], terms: list[int], first: int, before_term: int
) -> None:
    log = stored(base=base, terms=terms, first=first, before_term=before_term).open_log()
    assert (log.before_index, log.before_term, log.last_index) == (*base, base[0])


def test_an_unknown_term_before_the_first_entry() -> None:
    log = stored(base=(5, 2), terms=[2, 3], first=6, before_term=0).open_log()
    assert (log.before_index, log.before_term, log.last_index) == (5, 2, 7)
    log = stored(base=(5, 2), terms=[1, 2, 2, 3], first=4, before_term=0).open_log()
    assert (log.before_index, log.before_term, log.last_index) == (4, 1, 7)


def test_missing_committed_entries_are_an_error() -> None:
    with pytest.raises(AssertionError, match="lacks a committed entry"):
        stored(base=(5, 2), terms=[2], first=6, before_term=2, commit=8).open_log()


def test_the_membership_of_the_newest_entry_is_in_force() -> None:
    four = Membership((*GROUP.voters, replica_id(4)))
    entries = (Entry(1, 1, b""), Entry(2, 1, b"", four), Entry(3, 1, b""))
    state = StoredState(HardState(1), SnapshotMeta(0, 0, GROUP, bytes(16), 0), entries, 0, (0, 0))
    node = RaftNode(replica_id(1), RaftLimits(), state, lambda _: 0)
    assert (node.membership, node.membership_index) == (four, 2)
    assert node.membership_at(1) == GROUP


def test_a_snapshot_of_a_term_that_was_not_kept_raises_the_term() -> None:
    state = stored(base=(5, 4), terms=[], first=6, before_term=0, term=3)
    node = RaftNode(replica_id(1), RaftLimits(), state, lambda _: 0)
    assert node.term == 4
    ready = node.ready()
    assert ready is not None
    assert ready.persist is not None
    assert ready.persist.hard_state == HardState(4, None)
