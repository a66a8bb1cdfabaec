"""The disk of one replica: writes end in order, and a crash loses the unfinished ones or their tail.

As in a journal, a write stores the hard state before the entries, and an entry at or below the last index
cuts the log there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from ponor_raft.entry import Entry, HardState, SnapshotMeta
from ponor_raft.ready import Persist
from ponor_raft.stored import StoredState

WriteEnded = Callable[[], None]


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot with its body."""

    meta: SnapshotMeta
    body: bytes


@dataclass(slots=True)
class _Write:
    """A write in flight: of a `Persist`, or of a snapshot."""

    content: Persist | StoredSnapshot
    ended: WriteEnded


@dataclass(slots=True)
class RaftDisk:
    """A disk; its owner decides when the oldest write ends.

    Attributes:
        durable: called with the old and the new hard state whenever a new hard state becomes durable.
    """

    snapshot: StoredSnapshot
    hard_state: HardState = field(default_factory=HardState)
    entries: list[Entry] = field(default_factory=list)
    before: tuple[int, int] = (0, 0)
    """Index and term of the entry before the first one."""
    durable: Callable[[HardState, HardState], None] | None = None
    _writes: deque[_Write] = field(default_factory=deque)

    @property
    def writes(self) -> int:
        """Number of writes in flight."""
        return len(self._writes)

    @property
    def last_index(self) -> int:
        """Last index of the log or of the snapshot."""
        return max(self.before[0] + len(self.entries), self.snapshot.meta.index)

    def term_at(self, index: int) -> int | None:
        """The term of a durable entry; None if it is absent or only in the snapshot."""
        if index == self.snapshot.meta.index:
            return self.snapshot.meta.term
        return self._term_in_log(index)

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry is durable, in the log or in the snapshot."""
        return index <= self.snapshot.meta.index or self.term_at(index) == term

    def write(self, content: Persist | StoredSnapshot, ended: WriteEnded) -> None:
        """Start a write."""
        self._writes.append(_Write(content, ended))

    def end_oldest(self) -> None:
        """Make the oldest write durable and report it."""
        write = self._writes.popleft()
        self._keep(write.content)
        write.ended()

    def crash(self, chance: Random) -> None:
        """Lose power. A random prefix of the unfinished writes becomes durable; the disk reports none of
        them.
        """
        survivors = chance.randrange(len(self._writes) + 1)
        writes, self._writes = list(self._writes), deque()
        for write in writes[:survivors]:
            self._keep(write.content)
        if survivors < len(writes):
            torn = writes[survivors].content
            if isinstance(torn, Persist) and chance.random() < 0.5:
                kept = torn.entries[: chance.randrange(len(torn.entries) + 1)]
                self._keep(Persist(torn.sequence, torn.hard_state, kept, ()))

    def copy(self) -> RaftDisk:
        """The durable contents on another disk."""
        return RaftDisk(self.snapshot, self.hard_state, list(self.entries), self.before)

    def put_back(self, copy: RaftDisk) -> None:
        """Restore the durable contents of a copy; no write may be in flight."""
        assert not self._writes
        self.snapshot, self.hard_state = copy.snapshot, copy.hard_state
        self.entries, self.before = list(copy.entries), copy.before

    def forget_before(self, index: int) -> None:
        """Drop entries up to `index`, which the snapshot contains."""
        assert index <= self.snapshot.meta.index
        count = index - self.before[0]
        if 0 < count <= len(self.entries):
            self.before = (index, self.entries[count - 1].term)
            del self.entries[:count]

    def stored(self) -> StoredState:
        """The state that a restart reads."""
        return StoredState(
            hard_state=self.hard_state,
            base=self.snapshot.meta,
            entries=tuple(self.entries),
            commit=self.snapshot.meta.index,
            base_of_entries=self.before,
        )

    def _keep(self, content: Persist | StoredSnapshot) -> None:
        if isinstance(content, StoredSnapshot):
            if content.meta.index > self.snapshot.meta.index:
                self.snapshot = content
            return
        if content.hard_state is not None:
            before, self.hard_state = self.hard_state, content.hard_state
            if self.durable is not None:
                self.durable(before, self.hard_state)
        if content.entries:
            self._append(content.entries)

    def _term_in_log(self, index: int) -> int | None:
        offset = index - self.before[0] - 1
        if offset == -1:
            return self.before[1]
        return self.entries[offset].term if 0 <= offset < len(self.entries) else None

    def _append(self, entries: tuple[Entry, ...]) -> None:
        """Append entries, or replace the entries from their first index on.

        After a received snapshot the log continues at the next index; older entries are dropped unless they
        agree with the snapshot. A write that began before the snapshot was installed may end later. Its
        entries are then below the snapshot, part of a replaced log, or directly after the snapshot.
        """
        first, meta = entries[0].index, self.snapshot.meta
        kept = first - self.before[0] - 1
        agrees = first != meta.index + 1 or self._term_in_log(meta.index) == meta.term
        if 0 <= kept <= len(self.entries) and agrees:
            del self.entries[kept:]
            self.entries.extend(entries)
            return
        assert first <= meta.index + 1, f"a write of entry {first} leaves a hole in the log"
        if first <= meta.index and (meta.index, meta.term) not in {
            (each.index, each.term) for each in entries
        }:
            return
        self.before = (meta.index, meta.term)
        self.entries = [each for each in entries if each.index > meta.index]
