"""Which membership is in force at which index.

What lives here: the history of configurations, as far back as a cut or a snapshot may ask for it. The newest one is in force from the moment its entry
is appended, committed or not, and no longer once that entry is cut. Applying it later, at commit or at apply, lets a replica campaign among voters of the
past, and a group without any leader is the result (etcd-io/etcd #12359).
"""

from __future__ import annotations

from collections.abc import Sequence

from ponor_raft.entry import Entry
from ponor_raft.membership import Membership, ReplicaId


class Configurations:
    """`(index, membership)` in rising order; the first is that of a snapshot, or of the beginning."""

    def __init__(self, index: int, membership: Membership) -> None:
        self._history: list[tuple[int, Membership]] = [(index, membership)]

    @property
    def current(self) -> Membership:
        return self._history[-1][1]

    @property
    def current_index(self) -> int:
        """Where the membership in force was written. Above the commit index: the change is not decided yet."""
        return self._history[-1][0]

    def may_decide(self, replica: ReplicaId, commit: int) -> bool:
        """Whether `replica` is a voter of a configuration that may be in force somewhere: the newest committed one, or a later one."""
        for since, membership in reversed(self._history):
            if replica in membership.voters:
                return True
            if since <= commit:
                return False
        return False

    def at(self, index: int) -> Membership:
        """What was in force at `index`, which is not before the beginning of the history."""
        for since, membership in reversed(self._history):
            if since <= index:
                return membership
        raise LookupError(
            f"the membership at index {index} is forgotten; the history begins at {self._history[0][0]}"
        )

    def append(self, entries: Sequence[Entry]) -> bool:
        """Take over what these entries carry. True: the membership in force is another one now."""
        count = len(self._history)
        for entry in entries:
            if entry.membership is not None:
                assert entry.index > self.current_index
                self._history.append((entry.index, entry.membership))
        return len(self._history) != count

    def cut(self, first: int) -> None:
        """Entries from `first` on are no longer in the log."""
        while len(self._history) > 1 and self._history[-1][0] >= first:
            self._history.pop()

    def reset(self, index: int, membership: Membership) -> None:
        """The log begins behind a snapshot at `index`."""
        self._history = [(index, membership)]

    def compact(self, index: int) -> None:
        """Nobody asks for what was in force before `index` any more."""
        while len(self._history) > 1 and self._history[1][0] <= index:
            self._history.pop(0)

    def validate(self) -> None:
        """Assert what must hold between two calls."""
        indices = [index for index, _ in self._history]
        assert indices == sorted(set(indices))
