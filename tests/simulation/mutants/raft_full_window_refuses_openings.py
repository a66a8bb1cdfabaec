"""Planted bug: a follower whose window is full takes nothing at all, also not what it needs before anything can be committed and compacted."""

from __future__ import annotations

import pytest
from ponor_raft.entry import Entry
from ponor_raft.following import Following


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the correct code for one test."""

    def admitted(self: Following, new: tuple[Entry, ...]) -> tuple[Entry, ...]:
        replica = self._replica
        if len(replica.log) + len(new) > replica.limits.window_entries_max:
            replica.drop("window full")
            return ()
        return new

    monkeypatch.setattr(Following, "_admitted", admitted)
