"""State that a restart found on disk, and the rule for combining its snapshot and its entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponor_raft.entry import Entry, HardState, SnapshotMeta
from ponor_raft.log_window import LogWindow


@dataclass(frozen=True, slots=True)
class StoredState:
    """Everything here is durable.

    Attributes:
        hard_state: the newest one.
        base: the newest snapshot, which the owner's state machine stands at; without one `SnapshotMeta(0, 0,
            initial membership, bytes(16), 0)`.
        entries: what the log holds, contiguous. They may begin before `base.index + 1`: trailing entries
            spare slow followers a snapshot.
        commit: known to be committed; at least `base.index`. Entries above `base.index` up to it are given
            again in `Ready.committed`.
        base_of_entries: index and term of the entry just before `entries[0]`; of no importance without
            entries. Term 0 above index 0: not known any more, as behind a trimmed log.
    """

    hard_state: HardState
    base: SnapshotMeta
    entries: Sequence[Entry]
    commit: int
    base_of_entries: tuple[int, int]

    def open_log(self) -> LogWindow:
        """Return the stored log without entries that do not reach the snapshot or contradict it.

        Such entries remain if the process ended between `RaftNode.restore` and the next `Persist`: the
        durable snapshot replaced them. A snapshot contains committed entries only, so they are not committed.
        """
        (before_index, before_term), entries = self.base_of_entries, list(self.entries)
        if entries:
            assert entries[0].index == before_index + 1, "base_of_entries is just before the first entry"
            assert entries[-1].index == before_index + len(entries), "the entries have no holes"
        if entries and before_index > 0 and before_term == 0:
            before_index, before_term = self._known_beginning(entries)
        if not entries or not _reach(self.base, before_index, before_term, entries):
            before_index, before_term, entries = self.base.index, self.base.term, []
        log = LogWindow(before_index, before_term, delivered=self.base.index)
        log.load(entries)
        if self.base.index > 0 and not entries:
            log.begin_anew()
        assert self.base.index <= self.commit <= log.last_index, "the stored log lacks a committed entry"
        log.commit_to(self.commit)
        return log

    def _known_beginning(self, entries: list[Entry]) -> tuple[int, int]:
        """Determine the unknown term before the first entry: from the snapshot, or the first entry becomes
        the base.
        """
        if entries[0].index == self.base.index + 1 and entries[0].term >= self.base.term:
            return self.base.index, self.base.term
        first = entries.pop(0)
        return first.index, first.term


def _reach(base: SnapshotMeta, before_index: int, before_term: int, entries: list[Entry]) -> bool:
    """Whether the entries contain the snapshot's entry or start directly after it."""
    offset = base.index - before_index - 1
    if offset == -1:
        return before_term == base.term
    return 0 <= offset < len(entries) and entries[offset].term == base.term
