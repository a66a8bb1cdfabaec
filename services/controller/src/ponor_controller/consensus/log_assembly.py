"""What the pieces of the record log add up to: the newest of everything.

What lives here: the rule by which a later piece replaces earlier ones, and the refusals of what cannot be: a hole, a term that falls. No files.
"""

from __future__ import annotations

from ponor_raft.entry import Entry, HardState

from ponor_controller.consensus.log_pieces import Begin, Piece, PieceError


class LogAssembly:
    """Add pieces in the order in which they were written.

    Attributes:
        hard_state: the newest; None before the first.
        begin: where the log began anew for the last time.
        entries: those that are in force, contiguous.
    """

    def __init__(self) -> None:
        self.hard_state: HardState | None = None
        self.begin: Begin | None = None
        self.entries: list[Entry] = []

    def add(self, piece: Piece) -> None:
        """The next piece.

        Raises:
            PieceError: it cannot follow on those before.
        """
        if isinstance(piece, HardState):
            self._add_hard_state(piece)
        elif isinstance(piece, Begin):
            self.begin = piece
            self.entries.clear()
        else:
            self._add_entry(piece)

    def _add_hard_state(self, state: HardState) -> None:
        if self.hard_state is not None and state.term < self.hard_state.term:
            raise PieceError(f"falls back to term {state.term} from {self.hard_state.term}")
        self.hard_state = state

    def _add_entry(self, entry: Entry) -> None:
        entries = self.entries
        if entries:
            self._cut_before(entry)
        if entries:
            before = entries[-1].index
            if entry.term < entries[-1].term:
                raise PieceError(
                    f"holds index {entry.index} of term {entry.term} behind term {entries[-1].term}"
                )
        elif self.begin is not None:
            before = self.begin.index
        else:
            before = entry.index - 1  # what is before was given back
        if entry.index != before + 1:
            raise PieceError(f"holds index {entry.index}, but {before + 1} is missing")
        entries.append(entry)

    def _cut_before(self, entry: Entry) -> None:
        """A later entry replaces what has its index, and everything behind."""
        keep = entry.index - self.entries[0].index
        del self.entries[max(keep, 0) :]
