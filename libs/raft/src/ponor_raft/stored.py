"""State that a restart found on disk, and the rule that combines the snapshot with the entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ponor_raft.entry import Entry, HardState, SnapshotMeta
from ponor_raft.log_window import LogWindow


@dataclass(frozen=True, slots=True)
class StoredState:
    """The durable state that a restart found.

    Attributes:
        hard_state: the newest hard state.
        base: the newest snapshot, which the owner's state machine has loaded; without one `SnapshotMeta(0, 0,
            initial membership, bytes(16), 0)`.
        entries: the log's contiguous entries. They may start before `base.index + 1`. Then a leader can serve
            slow followers without a snapshot.
        commit: the known commit index; at least `base.index`. `Ready.committed` returns the entries from
            `base.index + 1` to this index again.
        base_of_entries: index and term of the entry just before `entries[0]`; ignored without entries. Term 0
            at an index above 0 means that the term is unknown, as after a trim of the log.
    """

    hard_state: HardState
    base: SnapshotMeta
    entries: Sequence[Entry]
    commit: int
    base_of_entries: tuple[int, int]

    def open_log(self) -> LogWindow:
        """Return the stored log. All entries are discarded if they end before the snapshot, start after it or
        contradict it.

        Such entries remain if the process ended after `RaftNode.restore` and before the next `Persist`: the
        durable snapshot had replaced them. A snapshot contains only committed entries, so entries that
        contradict it are not committed.
        """
        (before_index, before_term), entries = self.base_of_entries, list(self.entries)
        if entries:
            assert entries[0].index == before_index + 1, "base_of_entries is not right before the first entry"
            assert entries[-1].index == before_index + len(entries), "the indexes are not contiguous"
        if entries and before_index > 0 and before_term == 0:
            before_index, before_term = self._known_beginning(entries)
        if not entries or not _reach(self.base, before_index, before_term, entries):
            before_index, before_term, entries = self.base.index, self.base.term, []
        log = LogWindow(before_index, before_term, delivered=self.base.index)
        log.load(entries)
        if self.base.index > 0 and not entries:
            log.restart()
        assert self.base.index <= self.commit <= log.last_index, "the stored log lacks a committed entry"
        log.commit_to(self.commit)
        return log

    def _known_beginning(self, entries: list[Entry]) -> tuple[int, int]:
        """Determine index and term before the first entry. If the snapshot ends there, use the snapshot's;
        otherwise drop the first entry and use its index and term.
        """
        if entries[0].index == self.base.index + 1 and entries[0].term >= self.base.term:
            return self.base.index, self.base.term
        first = entries.pop(0)
        return first.index, first.term


def _reach(base: SnapshotMeta, before_index: int, before_term: int, entries: list[Entry]) -> bool:
    """Whether the entries contain the last entry of the snapshot, or start directly after it."""
    offset = base.index - before_index - 1
    if offset == -1:
        return before_term == base.term
    return 0 <= offset < len(entries) and entries[offset].term == base.term
