"""The part of the log in memory, and how far the log is written, durable, committed and delivered.

The window contains the entries and four marks, which are indices:

        delivered <= commit      returned to the owner in `Ready.committed`; must be durable as well
    durable   <= handed_out  reported by `RaftNode.persisted`, or held by a snapshot
        handed_out <= last_index returned to the owner in a `Persist`

`commit` and `durable` are not ordered: an entry may be durable on a majority of other replicas before it is
durable on this disk.

This module handles no terms, votes or messages, and decides nothing; it only asserts that the log is
consistent.

**Writes and truncations.** An owner may have several `Persist`s in flight, so an entry can be truncated,
replaced and appended again while its first write is in flight. When the first write ends, the entry must not
count as durable, because the write of the replacement follows and removes the entry from disk again
(etcd-io/raft `testdata/async_storage_writes_append_aba_race.txt`). Therefore a truncation lowers, for each
write in flight, the index up to which the write will make entries durable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, islice, pairwise
from operator import attrgetter, itemgetter

from ponor_raft.entry import Entry

_data = attrgetter("data")
_first = itemgetter(0)


class _Write:
    """A `Persist` in flight. When it ends, all entries up to `up_to` are durable."""

    __slots__ = ("sequence", "up_to")

    def __init__(self, sequence: int, up_to: int) -> None:
        self.sequence = sequence
        self.up_to = up_to


class LogWindow:
    """Entries `first_index..last_index`.

    Of the entry before `first_index`, only index and term are in memory (`before_index`, `before_term`).
    """

    def __init__(self, before_index: int, before_term: int, *, delivered: int) -> None:
        self.before_index = before_index
        self.before_term = before_term
        self.last_index = before_index
        self.last_term = before_term
        self.commit = delivered
        self.durable = before_index
        self.handed_out = before_index
        self.delivered = delivered
        self._entries: list[Entry] = []
        self._ends: list[int] = []  # running total of data bytes at the end of each entry
        self._origin = 0  # running total just before the first entry
        self._runs: list[tuple[int, int]] = [
            (before_index, before_term)
        ]  # where each term begins; the first run begins at before_index
        self._writes: deque[_Write] = deque()
        self._begins_after: tuple[int, int] | None = None
        self._shared: tuple[Entry, ...] = ()

    @property
    def first_index(self) -> int:
        return self.before_index + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of data in memory."""
        return (self._ends[-1] if self._ends else self._origin) - self._origin

    def __len__(self) -> int:
        return len(self._entries)

    # --- reading ---

    def term_at(self, index: int) -> int | None:
        """Term of an entry; None if it is no longer in memory, or does not exist yet."""
        offset = index - self.before_index - 1
        if offset == -1:
            return self.before_term
        if 0 <= offset < len(self._entries):
            return self._entries[offset].term
        return None

    def batch_from(self, first: int, bytes_max: int, entries_max: int) -> tuple[Entry, ...]:
        """Entries from `first` on, within the limits. An entry larger than `bytes_max` is returned alone.

        Consecutive calls for the same range return the same tuple.
        """
        start = first - self.before_index - 1
        assert 0 <= start < len(self._entries)
        room_end = (self._ends[start - 1] if start else self._origin) + bytes_max
        stop = min(len(self._entries), start + entries_max)
        if self._ends[stop - 1] > room_end:
            stop = max(start + 1, bisect_right(self._ends, room_end, start, stop))
        return self._take(start, stop)

    def between(self, first: int, last: int) -> tuple[Entry, ...]:
        """Entries `first..last`, inclusive."""
        return self._take(first - self.before_index - 1, last - self.before_index)

    def all_after(self, index: int) -> tuple[Entry, ...]:
        """Entries above `index`."""
        return self.between(index + 1, self.last_index) if index < self.last_index else ()

    def bytes_after(self, index: int) -> int:
        """Bytes of data above `index`."""
        if index >= self.last_index:
            return 0
        offset = index - self.before_index - 1
        return self._ends[-1] - (self._ends[offset] if offset >= 0 else self._origin)

    def bytes_up_to(self, index: int) -> int:
        """Bytes of data in memory up to `index`."""
        return self.size_bytes - self.bytes_after(index)

    def last_at_or_below(self, index: int, term: int) -> tuple[int, int]:
        """(index, term) of the last entry whose index is at most `index` and whose term is at most `term`.
        Two diverging logs may have their last common entry there.

        Term 0 means that the entry is no longer in memory: search before the returned index.
        """
        position = bisect_right(self._runs, index, key=_first) - 1
        if position < 0:
            return max(index, 0), 0
        while self._runs[position][1] > term:
            index = self._runs[position][0] - 1
            position -= 1
            if position < 0:
                return max(index, 0), 0
        return index, self._runs[position][1]

    def _take(self, start: int, stop: int) -> tuple[Entry, ...]:
        shared = self._shared
        if len(shared) == stop - start and shared and shared[0] is self._entries[start]:
            return shared
        self._shared = tuple(self._entries[start:stop])
        return self._shared

    # --- writing ---

    def load(self, entries: Sequence[Entry]) -> None:
        """Load the durable entries that a restart found on disk."""
        assert not self._entries
        if entries:
            self.append(entries)
        self.durable = self.handed_out = self.last_index

    def append_one(self, entry: Entry) -> None:
        """Append a leader's proposal."""
        assert entry.index == self.last_index + 1
        if entry.term != self.last_term:
            assert entry.term > self.last_term
            self._runs.append((entry.index, entry.term))
            self.last_term = entry.term
        self._ends.append((self._ends[-1] if self._ends else self._origin) + len(entry.data))
        self._entries.append(entry)
        self.last_index += 1

    def append(self, entries: Sequence[Entry]) -> None:
        """Append at least one entry after the last one."""
        assert entries[0].index == self.last_index + 1
        if entries[-1].term != self.last_term:
            self._note_terms(entries)
        end = self._ends[-1] if self._ends else self._origin
        self._ends.extend(islice(accumulate(map(len, map(_data, entries)), initial=end), 1, None))
        self._entries.extend(entries)
        self.last_index += len(entries)
        assert entries[-1].index == self.last_index

    def _note_terms(self, entries: Sequence[Entry]) -> None:
        term = self.last_term
        for entry in entries:
            if entry.term != term:
                assert entry.term > term, "the term of an entry is below the term of the entry before it"
                term = entry.term
                self._runs.append((entry.index, term))
        self.last_term = term

    def cut(self, first: int) -> None:
        """Truncate from `first` on, because a later leader has other entries there.

        Committed entries are never truncated.
        """
        assert self.commit < first <= self.last_index
        offset = first - self.before_index - 1
        del self._entries[offset:]
        del self._ends[offset:]
        while len(self._runs) > 1 and self._runs[-1][0] >= first:
            self._runs.pop()
        self.last_index = first - 1
        self.last_term = self._runs[-1][1]
        self._lower_marks(first - 1)

    def reset(self, index: int, term: int) -> None:
        """Replace the whole log by a durable snapshot at `index` that the owner has loaded."""
        assert index > self.commit
        self._entries.clear()
        self._ends.clear()
        self._origin = 0
        self._runs = [(index, term)]
        self.before_index = self.last_index = index
        self.before_term = self.last_term = term
        self.handed_out = self.durable = self.commit = self.delivered = index
        self._shared = ()
        self.restart()
        for write in self._writes:
            write.up_to = 0

    def skip_to(self, index: int) -> None:
        """Mark entries up to `index` as committed and delivered: the owner loaded a durable snapshot at
        `index` that matches the log.

        The entries count as durable because the snapshot contains them. Entries that are not written yet are
        still written, so that the log on disk has no gap.
        """
        assert self.delivered < index <= self.last_index
        self.commit = max(self.commit, index)
        self.delivered = index
        self.durable = max(self.durable, index)

    def compact(self, index: int) -> None:
        """Discard entries up to `index`, which a durable snapshot contains."""
        assert self.before_index < index <= self.delivered
        term = self.term_at(index)
        assert term is not None
        offset = index - self.before_index
        self._origin = self._ends[offset - 1]
        del self._entries[:offset]
        del self._ends[:offset]
        position = bisect_right(self._runs, index, key=_first) - 1
        self._runs[: position + 1] = [(index, term)]
        self.before_index = index
        self.before_term = term
        self._shared = ()

    def _lower_marks(self, index: int) -> None:
        self.handed_out = min(self.handed_out, index)
        self.durable = min(self.durable, index)
        self._shared = ()
        for write in self._writes:
            write.up_to = min(write.up_to, index)

    # --- marks ---

    def begin_write(self, sequence: int) -> tuple[Entry, ...]:
        """Take the entries that no write contains yet. They become durable when write `sequence` ends."""
        entries = (
            self.between(self.handed_out + 1, self.last_index) if self.handed_out < self.last_index else ()
        )
        self.handed_out = self.last_index
        self._writes.append(_Write(sequence, self.handed_out))
        return entries

    def restart(self) -> None:
        """Let the next write record that the log restarts after `before_index` and that all entries on disk
        are void.
        """
        self._begins_after = (self.before_index, self.before_term)

    def take_beginning(self) -> tuple[int, int] | None:
        """Return (index, term) after which the log restarts; None without a restart since the last call."""
        begins_after, self._begins_after = self._begins_after, None
        return begins_after

    def end_write(self, sequence: int) -> None:
        """Handle the end of a write; writes end in the order in which they started."""
        assert self._writes, "a write ended, but no write is in progress"
        write = self._writes.popleft()
        assert write.sequence == sequence, f"write {write.sequence} must end before {sequence}"
        self.durable = max(self.durable, write.up_to)

    def commit_to(self, index: int) -> None:
        """Advance the commit index; it never decreases, so older values have no effect."""
        assert index <= self.last_index
        self.commit = max(self.commit, index)

    def deliver(self) -> tuple[Entry, ...]:
        """Take the entries that are committed, durable locally and not delivered yet."""
        up_to = min(self.commit, self.durable)
        if up_to <= self.delivered:
            return ()
        entries = self.between(self.delivered + 1, up_to)
        self.delivered = up_to
        return entries

    def validate(self) -> None:
        """Assert all invariants between calls."""
        assert self.last_index == self.before_index + len(self._entries)
        assert len(self._ends) == len(self._entries)
        assert self.before_index <= self.delivered <= self.commit <= self.last_index
        assert self.delivered <= self.durable <= max(self.handed_out, self.delivered)
        assert self.handed_out <= self.last_index
        assert all(
            entry.index == self.before_index + 1 + offset for offset, entry in enumerate(self._entries)
        )
        terms = [
            (self.before_index, self.before_term),
            *((entry.index, entry.term) for entry in self._entries),
        ]
        runs = [
            run for position, run in enumerate(terms) if position == 0 or run[1] != terms[position - 1][1]
        ]
        assert runs == self._runs
        assert all(before[1] < after[1] for before, after in pairwise(runs))
        assert self.last_term == terms[-1][1]
        sizes = accumulate(map(len, map(_data, self._entries)), initial=self._origin)
        assert list(islice(sizes, 1, None)) == self._ends
        assert all(write.up_to <= self.handed_out for write in self._writes)
