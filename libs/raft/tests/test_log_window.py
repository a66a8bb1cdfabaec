"""The window over the log compared with a plain list, for any order of appends, truncations,
compactions and writes.
"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ponor_raft.entry import Entry
from ponor_raft.log_window import LogWindow


def entries(first: int, terms: list[int], size: int = 1) -> list[Entry]:
    return [Entry(first + offset, term, b"x" * size) for offset, term in enumerate(terms)]


class WindowAgainstList(RuleBasedStateMachine):
    """The model: all entries ever in a list, and a disk that writes in order."""

    def __init__(self) -> None:
        super().__init__()
        self.window = LogWindow(0, 0, delivered=0)
        self.window.load([])
        self.model: list[Entry] = []
        self.before = 0
        self.disk: list[Entry] = []
        self.writes: deque[tuple[int, tuple[Entry, ...]]] = deque()
        self.sequence = 0

    @rule(count=st.integers(1, 5), step=st.integers(0, 2), size=st.integers(0, 30))
    def append(self, count: int, step: int, size: int) -> None:
        term = max(1, self.window.last_term + step)
        new = entries(len(self.model) + 1, [term] * count, size)
        if count == 1:
            self.window.append_one(new[0])
        else:
            self.window.append(new)
        self.model += new

    @precondition(lambda self: len(self.model) > self.window.commit)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(self.window.commit + 1, len(self.model)))
        self.window.cut(first)
        del self.model[first - 1 :]

    @rule()
    def begin_write(self) -> None:
        self.sequence += 1
        self.writes.append((self.sequence, self.window.begin_write(self.sequence)))

    @precondition(lambda self: self.writes)
    @rule()
    def end_write(self) -> None:
        sequence, written = self.writes.popleft()
        if written:
            del self.disk[written[0].index - 1 :]
            self.disk += written
        self.window.end_write(sequence)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.window.commit_to(data.draw(st.integers(0, len(self.model))))

    @rule()
    def deliver(self) -> None:
        since = self.window.delivered
        given = self.window.deliver()
        assert list(given) == self.model[since : since + len(given)]

    @precondition(lambda self: self.window.delivered > self.before)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        self.before = data.draw(st.integers(self.before + 1, self.window.delivered))
        self.window.compact(self.before)

    @invariant()
    def durable_is_durable(self) -> None:
        durable = self.window.durable
        assert self.disk[:durable] == self.model[:durable]

    @invariant()
    def same_as_the_list(self) -> None:
        self.window.validate()
        assert self.window.last_index == len(self.model)
        for index in range(self.before + 1, len(self.model) + 1):
            assert self.window.term_at(index) == self.model[index - 1].term
        assert self.window.term_at(len(self.model) + 1) is None
        assert self.window.size_bytes == sum(len(entry.data) for entry in self.model[self.before :])

    @precondition(lambda self: len(self.model) > self.before)
    @rule(data=st.data(), bytes_max=st.integers(0, 60), entries_max=st.integers(1, 6))
    def read(self, data: st.DataObject, bytes_max: int, entries_max: int) -> None:
        first = data.draw(st.integers(self.before + 1, len(self.model)))
        batch = self.window.batch_from(first, bytes_max, entries_max)
        assert list(batch) == self.model[first - 1 : first - 1 + len(batch)]
        assert 1 <= len(batch) <= entries_max
        assert len(batch) == 1 or sum(len(entry.data) for entry in batch) <= bytes_max
        following = self.model[first - 1 + len(batch) :][:1]
        if following and len(batch) < entries_max:
            assert sum(len(entry.data) for entry in [*batch, *following]) > bytes_max

    @rule(data=st.data(), term=st.integers(0, 12))
    def meet(self, data: st.DataObject, term: int) -> None:
        index = data.draw(st.integers(self.before, len(self.model)))
        fitting = [entry.index for entry in self.model[:index] if entry.term <= term]
        expected = fitting[-1] if fitting else 0
        found, found_term = self.window.last_at_or_below(index, term)
        if expected >= self.before:
            assert (found, found_term) == (expected, self.model[expected - 1].term if expected else 0)
        else:
            assert (found, found_term) == (self.before - 1, 0)


WindowAgainstList.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWindow = WindowAgainstList.TestCase


def test_a_truncated_write_makes_nothing_durable() -> None:
    window = LogWindow(0, 0, delivered=0)
    window.append(entries(1, [1, 1]))
    assert [entry.index for entry in window.begin_write(1)] == [1, 2]
    window.cut(2)
    window.append(entries(2, [2]))
    window.begin_write(2)
    window.cut(2)
    window.append(entries(2, [3]))
    window.begin_write(3)
    window.end_write(1)
    assert window.durable == 1
    window.end_write(2)
    assert window.durable == 1
    window.end_write(3)
    assert window.durable == 2


def test_writes_complete_in_order() -> None:
    window = LogWindow(0, 0, delivered=0)
    window.append(entries(1, [1]))
    window.begin_write(1)
    window.append(entries(2, [1]))
    window.begin_write(2)
    with pytest.raises(AssertionError, match="must end before"):
        window.end_write(2)


def test_a_snapshot_beyond_the_log_replaces_it() -> None:
    window = LogWindow(0, 0, delivered=0)
    window.append(entries(1, [1, 1, 1]))
    window.begin_write(1)
    window.reset(10, 4)
    window.validate()
    assert (window.first_index, window.last_index, window.last_term, window.durable, window.commit) == (
        11,
        10,
        4,
        10,
        10,
    )
    window.end_write(1)
    assert window.durable == 10


def test_a_snapshot_that_matches_the_log_keeps_the_entries_after_it() -> None:
    window = LogWindow(0, 0, delivered=0)
    window.append(entries(1, [1, 1, 2, 2]))
    window.begin_write(1)
    window.skip_to(2)
    window.validate()
    assert (window.commit, window.delivered, window.durable, window.last_index) == (2, 2, 2, 4)
    window.end_write(1)
    assert window.durable == 4


def test_readers_of_one_range_share_it() -> None:
    window = LogWindow(0, 0, delivered=0)
    window.append(entries(1, [1, 1, 1]))
    assert window.batch_from(1, 100, 100) is window.batch_from(1, 100, 100)
    assert window.begin_write(1) is window.batch_from(1, 100, 100)


def test_a_snapshot_among_unwritten_entries() -> None:
    window = LogWindow(0, 0, delivered=0)
    window.append(entries(1, [1, 1, 1]))
    window.commit_to(3)
    window.skip_to(2)
    window.validate()
    assert (window.durable, window.delivered, window.commit) == (2, 2, 3)
    assert [entry.index for entry in window.begin_write(1)] == [1, 2, 3]
    window.end_write(1)
    assert [entry.index for entry in window.deliver()] == [3]
