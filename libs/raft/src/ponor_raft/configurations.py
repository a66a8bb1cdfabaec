"""History of configurations: the membership in force at each index, as far back as a truncation or snapshot
may need it.

A configuration is in force as soon as its entry is appended, committed or not, and until that entry is
truncated. If a replica used a configuration only when it is committed or applied, the replica could campaign
among the former voters, and the group could remain without a leader (etcd-io/etcd #12359).
"""

from __future__ import annotations

from collections.abc import Sequence

from ponor_raft.entry import Entry
from ponor_raft.membership import Membership, ReplicaId


class Configurations:
    """`(index, membership)` in ascending order.

    The first pair is from a snapshot, or it is the initial configuration.
    """

    def __init__(self, index: int, membership: Membership) -> None:
        self._history: list[tuple[int, Membership]] = [(index, membership)]

    @property
    def current(self) -> Membership:
        return self._history[-1][1]

    @property
    def current_index(self) -> int:
        """Index of the membership in force. If it is above the commit index, the change is uncommitted."""
        return self._history[-1][0]

    def may_decide(self, replica: ReplicaId, commit: int) -> bool:
        """Whether `replica` is a voter in the newest committed configuration or a later one."""
        for since, membership in reversed(self._history):
            if replica in membership.voters:
                return True
            if since <= commit:
                return False
        return False

    def at(self, index: int) -> Membership:
        """Membership in force at `index`, which must be within the history."""
        for since, membership in reversed(self._history):
            if since <= index:
                return membership
        raise LookupError(
            f"the membership at index {index} is not kept any more; the history begins at"
            f" index {self._history[0][0]}"
        )

    def append(self, entries: Sequence[Entry]) -> bool:
        """Add the configurations that these entries contain. Return whether the membership in force
        changed.
        """
        count = len(self._history)
        for entry in entries:
            if entry.membership is not None:
                assert entry.index > self.current_index
                self._history.append((entry.index, entry.membership))
        return len(self._history) != count

    def cut(self, first: int) -> None:
        """Remove the configurations of truncated entries, from `first` on."""
        while len(self._history) > 1 and self._history[-1][0] >= first:
            self._history.pop()

    def reset(self, index: int, membership: Membership) -> None:
        """Restart the history at a snapshot at `index`."""
        self._history = [(index, membership)]

    def compact(self, index: int) -> None:
        """Discard configurations that were replaced before `index`."""
        while len(self._history) > 1 and self._history[1][0] <= index:
            self._history.pop(0)

    def validate(self) -> None:
        """Assert the invariants between calls."""
        indices = [index for index, _ in self._history]
        assert indices == sorted(set(indices))
