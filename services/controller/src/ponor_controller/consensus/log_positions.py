"""Where in the journal which part of the log stands, so that old parts can be given back.

What lives here: arithmetic over what was written. Entries may be written more than once (a new leader replaces what was never committed), so a journal entry
may go only when everything in it is at or below the kept index.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """One journal entry: its sequence, the highest index in it (or in those before, if it has none), and all bytes written up to its end."""

    sequence: int
    last_index: int
    end_bytes: int


class LogPositions:
    """Positions of the journal entries that are still there, oldest first."""

    def __init__(self) -> None:
        self._positions: list[Position] = []
        self._end_bytes = 0

    def add(self, sequence: int, last_index: int, size_bytes: int) -> None:
        """The next journal entry; `last_index` 0: it holds no entry of the log."""
        self._end_bytes += size_bytes
        if last_index == 0 and self._positions:
            last_index = self._positions[-1].last_index
        self._positions.append(Position(sequence, last_index, self._end_bytes))

    def index_before_bytes(self, size_bytes: int) -> int:
        """An index behind which about so many bytes were written; 0 when there are not so many."""
        at = bisect_left(self._positions, self._end_bytes - size_bytes, key=lambda each: each.end_bytes)
        return self._positions[at - 1].last_index if at > 0 else 0

    def forget(self, through_index: int) -> int | None:
        """Forget the journal entries in front that hold nothing above an index.

        Returns:
            The sequence of the oldest that stays; None when all stay.
        """
        count = 0
        for position in self._positions:
            if position.last_index > through_index:
                break
            count += 1
        else:
            count -= 1  # the newest stays in any case
        if count <= 0:
            return None
        del self._positions[:count]
        return self._positions[0].sequence

    def forget_before_sequence(self, sequence: int) -> None:
        """Forget what was written before."""
        at = bisect_left(self._positions, sequence, key=lambda each: each.sequence)
        del self._positions[:at]
