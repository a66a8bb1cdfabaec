"""Callbacks of readers that wait for a partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

_Owner = TypeVar("_Owner")
ENOUGH_BYTES: Final = 1 << 62
"""Reported when a marker raises the last stable offset by an unknown number of bytes, so that readers
check."""


class Watchers(Generic[_Owner]):
    """Watchers of one owner, a partition.

    Watchers in `of_all` wait for the high watermark, those in `of_stable` for the last stable offset.
    """

    __slots__ = ("_stable_offset", "of_all", "of_stable")

    def __init__(self) -> None:
        self.of_all: dict[Callable[[_Owner, int], None], None] = {}
        self.of_stable: dict[Callable[[_Owner, int], None], None] = {}
        self._stable_offset = -1
        """Last stable offset at the last call; current while `of_stable` has watchers."""

    def __len__(self) -> int:
        return len(self.of_all) + len(self.of_stable)

    def add(self, watcher: Callable[[_Owner, int], None], stable_offset: int | None) -> None:
        """Call back when more data becomes readable; with `stable_offset`, only when the last stable offset
        exceeds it.
        """
        if stable_offset is None:
            self.of_all[watcher] = None
            return
        if not self.of_stable:
            self._stable_offset = stable_offset
        self.of_stable[watcher] = None

    def remove(self, watcher: Callable[[_Owner, int], None]) -> None:
        """Stop calling back."""
        self.of_all.pop(watcher, None)
        self.of_stable.pop(watcher, None)

    def appended(
        self, owner: _Owner, base_offset: int, end_offset: int, size_bytes: int, first_unstable: int
    ) -> None:
        """Call the watchers, because the append of [base_offset, end_offset) became readable."""
        for watcher in list(self.of_all):
            watcher(owner, size_bytes)
        before, stable = self._stable_offset, min(first_unstable, end_offset)
        if stable <= before or not self.of_stable:
            return
        self._stable_offset = stable
        growth = size_bytes if before >= base_offset else ENOUGH_BYTES
        for watcher in list(self.of_stable):
            watcher(owner, growth)

    def wake(self, owner: _Owner) -> None:
        """Call all watchers with a growth of 0 bytes."""
        for watcher in [*self.of_all, *self.of_stable]:
            watcher(owner, 0)
