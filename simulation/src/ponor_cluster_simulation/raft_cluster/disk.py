"""The disk of one replica: writes end in the order they began, and a crash loses what had not ended, or a tail of it.

What lives here: what is durable, and what a restart finds. The order of a journal is kept: hard state first, then entries; a later entry with an index not above
the last cuts the log.
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
    """A write under way: of a `Persist`, or of a snapshot."""

    content: Persist | StoredSnapshot
    ended: WriteEnded


@dataclass(slots=True)
class RaftDisk:
    """See the module. Its owner says when the oldest write ends.

    Attributes:
        durable: called with the hard state before and after whenever a new one is durable.
    """

    snapshot: StoredSnapshot
    hard_state: HardState = field(default_factory=HardState)
    entries: list[Entry] = field(default_factory=list)
    before: tuple[int, int] = (0, 0)
    """Index and term just before the first entry."""
    durable: Callable[[HardState, HardState], None] | None = None
    _writes: deque[_Write] = field(default_factory=deque)

    @property
    def writes(self) -> int:
        """How many are under way."""
        return len(self._writes)

    @property
    def last_index(self) -> int:
        """Of the log on the disk, the snapshot included."""
        return max(self.before[0] + len(self.entries), self.snapshot.meta.index)

    def term_at(self, index: int) -> int | None:
        """The term of a durable entry; None when it is not there, or in the snapshot alone."""
        if index == self.snapshot.meta.index:
            return self.snapshot.meta.term
        return self._term_in_log(index)

    def holds(self, index: int, term: int) -> bool:
        """Whether the entry is durable here, be it inside the snapshot."""
        return index <= self.snapshot.meta.index or self.term_at(index) == term

    def write(self, content: Persist | StoredSnapshot, ended: WriteEnded) -> None:
        """Begin a write."""
        self._writes.append(_Write(content, ended))

    def end_oldest(self) -> None:
        """The oldest write is durable, and its owner hears of it."""
        write = self._writes.popleft()
        self._keep(write.content)
        write.ended()

    def crash(self, chance: Random) -> None:
        """Power is gone. Nobody hears of what was under way; some of it may be there all the same, as much as fits the order."""
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
        """What is durable now, on another disk."""
        return RaftDisk(self.snapshot, self.hard_state, list(self.entries), self.before)

    def put_back(self, copy: RaftDisk) -> None:
        """What is durable is again what it was when the copy was made. No write is under way."""
        assert not self._writes
        self.snapshot, self.hard_state = copy.snapshot, copy.hard_state
        self.entries, self.before = list(copy.entries), copy.before

    def forget_before(self, index: int) -> None:
        """Drop entries up to `index`, which the snapshot holds."""
        assert index <= self.snapshot.meta.index
        count = index - self.before[0]
        if 0 < count <= len(self.entries):
            self.before = (index, self.entries[count - 1].term)
            del self.entries[:count]

    def stored(self) -> StoredState:
        """What a restart finds."""
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
        """Behind what is there, or in its place.

        After a received snapshot the log goes on behind it; what is on the disk from before goes, unless the snapshot agrees with it. A write that was given
        before the snapshot was installed may end after it: what it adds is below the snapshot, or belongs to a log that is no more, or goes on behind it.
        """
        first, meta = entries[0].index, self.snapshot.meta
        kept = first - self.before[0] - 1
        agrees = first != meta.index + 1 or self._term_in_log(meta.index) == meta.term
        if 0 <= kept <= len(self.entries) and agrees:
            del self.entries[kept:]
            self.entries.extend(entries)
            return
        assert first <= meta.index + 1, f"a write of entry {first} leaves a hole"
        if first <= meta.index and (meta.index, meta.term) not in {
            (each.index, each.term) for each in entries
        }:
            return
        self.before = (meta.index, meta.term)
        self.entries = [each for each in entries if each.index > meta.index]
