"""Index of the journal: which entries of the log each journal entry contains.

A new leader may replace uncommitted entries, so an index may occur in several journal entries. A
journal entry may be trimmed only when every index in it is at or below the trim index.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """A journal entry: its sequence, the highest log index up to it, and the journal bytes up to its end."""

    sequence: int
    last_index: int
    end_bytes: int


class LogPositions:
    """Positions of the journal entries that are not trimmed, oldest first."""

    def __init__(self) -> None:
        self._positions: list[Position] = []
        self._end_bytes = 0

    def add(self, sequence: int, last_index: int, size_bytes: int) -> None:
        """Add the next journal entry; `last_index` is 0 if it contains no entry of the log."""
        self._end_bytes += size_bytes
        if last_index == 0 and self._positions:
            last_index = self._positions[-1].last_index
        self._positions.append(Position(sequence, last_index, self._end_bytes))

    def index_before_bytes(self, size_bytes: int) -> int:
        """The index after which about `size_bytes` were written; 0 if there are fewer bytes."""
        at = bisect_left(self._positions, self._end_bytes - size_bytes, key=lambda each: each.end_bytes)
        return self._positions[at - 1].last_index if at > 0 else 0

    def trim(self, through_index: int) -> int | None:
        """Drop the positions of the oldest journal entries without an index above `through_index`.

        Returns:
            The sequence of the oldest remaining entry; None if nothing was dropped.
        """
        count = 0
        for position in self._positions:
            if position.last_index > through_index:
                break
            count += 1
        else:
            count -= 1  # the newest always remains
        if count <= 0:
            return None
        del self._positions[:count]
        return self._positions[0].sequence

    def trim_before_sequence(self, sequence: int) -> None:
        """Drop the positions of journal entries before `sequence`."""
        at = bisect_left(self._positions, sequence, key=lambda each: each.sequence)
        del self._positions[:at]
