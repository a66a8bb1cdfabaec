"""The records of one event. Each changes the state when added; all are undone if the log refuses them."""

from __future__ import annotations

from ponor_broker.groups.consumer.records import ConsumerEntry
from ponor_broker.groups.consumer.state import ConsumerState


class Draft:
    """The records of one event, in order. It lives within one turn of the event loop."""

    def __init__(self, state: ConsumerState) -> None:
        self._state = state
        self._size_before = state.size_bytes
        self._undo: list[ConsumerEntry] = []
        self.entries: list[ConsumerEntry] = []

    @property
    def growth_bytes(self) -> int:
        """Memory that the records add to the group."""
        return self._state.size_bytes - self._size_before

    def put(self, entry: ConsumerEntry) -> None:
        """Add a record and apply it."""
        self._undo.append(self._state.put(entry))
        self.entries.append(entry)

    def take_back(self, keep: int = 0) -> None:
        """Restore the state after the first `keep` records."""
        while len(self._undo) > keep:
            self._state.put(self._undo.pop())
        del self.entries[keep:]
