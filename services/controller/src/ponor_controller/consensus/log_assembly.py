"""Assemble the record log from its pieces: later pieces replace earlier ones.

Pieces are rejected if an index is missing between entries, or if a term is lower than an earlier one.
"""

from __future__ import annotations

from ponor_raft.entry import Entry, HardState

from ponor_controller.consensus.log_pieces import Begin, Piece, PieceError


class LogAssembly:
    """Assembles pieces, added in the order in which they were written.

    Attributes:
        hard_state: the newest hard state; None if no piece contained one.
        begin: the last restart of the log after a received snapshot.
        entries: the contiguous entries of the log.
    """

    def __init__(self) -> None:
        self.hard_state: HardState | None = None
        self.begin: Begin | None = None
        self.entries: list[Entry] = []

    def add(self, piece: Piece) -> None:
        """Add the next piece.

        Raises:
            PieceError: the piece cannot follow the earlier pieces.
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
            raise PieceError(f"lowers the term from {self.hard_state.term} to {state.term}")
        self.hard_state = state

    def _add_entry(self, entry: Entry) -> None:
        entries = self.entries
        if entries:
            self._cut_before(entry)
        if entries:
            before = entries[-1].index
            if entry.term < entries[-1].term:
                raise PieceError(
                    f"contains index {entry.index} of term {entry.term} after an entry of term"
                    f" {entries[-1].term}"
                )
        elif self.begin is not None:
            before = self.begin.index
        else:
            before = entry.index - 1  # earlier entries were trimmed
        if entry.index != before + 1:
            raise PieceError(f"contains index {entry.index}, but index {before + 1} is missing")
        entries.append(entry)

    def _cut_before(self, entry: Entry) -> None:
        """Remove the entry of the same index and all later ones, which `entry` replaces."""
        keep = entry.index - self.entries[0].index
        del self.entries[max(keep, 0) :]
