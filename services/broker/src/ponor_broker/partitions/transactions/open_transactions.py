"""The transactions of one partition that limit the last stable offset. No I/O.

A transaction is open from its first batch to its marker. Then it is ending until the marker is durable.
`roll_back` undoes the change of a failed append.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final, NamedTuple

NO_OFFSET: Final = -1
ALL_STABLE: Final = (1 << 63) - 1
"""First unstable offset of a partition without transactions."""


class Ending(NamedTuple):
    """A transaction whose marker is in flight."""

    marker_offset: int
    first_offset: int


class OpenTransactions:
    """First offsets of open and ending transactions.

    Attributes:
        ending: transactions whose markers are not durable yet, in the order of the markers.
        first_unstable: the smallest first offset; `ALL_STABLE` without transactions.
    """

    __slots__ = ("_open", "_smallest", "ending", "first_unstable")

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()
        """First offset by producer id, in the order of the offsets. An ordered dictionary finds its first key
        in constant time after any number of removals; a plain one does not."""
        self.ending: deque[Ending] = deque()
        self._smallest: deque[Ending] = deque()
        """The entries of `ending` that began before every later entry of `ending`; the first has the
        smallest first offset. Thousands of transactions may end at the same time, so a search for each would
        be too slow."""
        self.first_unstable = ALL_STABLE

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._open

    def reset(self, first_offsets: Mapping[int, int]) -> None:
        """Replace everything by these open transactions: first offset by producer id."""
        self._open = OrderedDict(sorted(first_offsets.items(), key=lambda one: one[1]))
        self.ending.clear()
        self._smallest.clear()
        self._update()

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note a transaction whose first batch was appended."""
        self._open[producer_id] = first_offset
        self._update()

    def end(self, producer_id: int, marker_offset: int) -> None:
        """Note a marker that was appended."""
        first_offset = self._open.pop(producer_id, NO_OFFSET)
        if first_offset != NO_OFFSET:
            ended = Ending(marker_offset, first_offset)
            self.ending.append(ended)
            while self._smallest and self._smallest[-1].first_offset > first_offset:
                self._smallest.pop()
            self._smallest.append(ended)

    def stable_after(self, marker_offset: int) -> int:
        """Return the smallest first offset of the open transactions, or the offset after the marker."""
        return next(iter(self._open.values()), marker_offset + 1)

    def confirm(self, end_offset: int) -> None:
        """Record that everything below `end_offset` is durable."""
        while self.ending and self.ending[0].marker_offset < end_offset:
            if self.ending.popleft() is self._smallest[0]:
                self._smallest.popleft()
        self._update()

    def roll_back(self, base_offset: int, producer_id: int, first_offset: int) -> None:
        """Undo the newest append, at `base_offset`. `first_offset` is where the producer's open transaction
        began before the append (`NO_OFFSET`: it had none).
        """
        if self.ending and self.ending[-1].marker_offset >= base_offset:
            self.ending.pop()
            self._restore_smallest()
        if self._open.get(producer_id, NO_OFFSET) != first_offset:
            self._open.pop(producer_id, None)
            if first_offset != NO_OFFSET:
                # No append follows a failed one, so only the first entry must be right: the smallest offset.
                is_smallest = first_offset < next(iter(self._open.values()), ALL_STABLE)
                self._open[producer_id] = first_offset
                self._open.move_to_end(producer_id, last=not is_smallest)
        self._update()

    def _restore_smallest(self) -> None:
        """Undo the change of `_smallest` by the last ending transaction, which was removed."""
        self._smallest.pop()
        before = self._smallest[-1] if self._smallest else None
        first_offset, restored = ALL_STABLE, []
        for ended in reversed(self.ending):
            if ended is before:
                break
            if ended.first_offset < first_offset:
                first_offset = ended.first_offset
                restored.append(ended)
        self._smallest.extend(reversed(restored))

    def _update(self) -> None:
        first = next(iter(self._open.values()), ALL_STABLE)
        self.first_unstable = min(first, self._smallest[0].first_offset) if self._smallest else first
