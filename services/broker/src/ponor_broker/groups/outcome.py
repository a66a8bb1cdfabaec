"""The outcome of an event in a group whose assignment the coordinator computes: records, timers, an answer.

An event changes the state when it adds a record. All its records are undone if the log refuses them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

from ponor_kafka.errors import ErrorCode

from ponor_broker.groups.instructions import CancelTimer, SetTimer

EntryT = TypeVar("EntryT")
AnswerT = TypeVar("AnswerT")

TimerInstruction: TypeAlias = SetTimer | CancelTimer


class HeartbeatRefusedError(Exception):
    """The state machine refuses a heartbeat, which then changes nothing."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Contents(Protocol[EntryT]):
    """The state of a group: exactly what its records contain."""

    @property
    def size_bytes(self) -> int:
        """Memory of the state."""
        ...

    def put(self, entry: EntryT) -> EntryT:
        """Apply a record; return the record that restores the value before."""
        ...


class Draft(Generic[EntryT]):
    """The records of one event, in order. It lives within one turn of the event loop."""

    def __init__(self, state: Contents[EntryT]) -> None:
        self._state = state
        self._size_before = state.size_bytes
        self._undo: list[EntryT] = []
        self.entries: list[EntryT] = []

    @property
    def growth_bytes(self) -> int:
        """Memory that the records add to the group."""
        return self._state.size_bytes - self._size_before

    def put(self, entry: EntryT) -> None:
        """Add a record and apply it."""
        self._undo.append(self._state.put(entry))
        self.entries.append(entry)

    def take_back(self, keep: int = 0) -> None:
        """Restore the state after the first `keep` records."""
        while len(self._undo) > keep:
            self._state.put(self._undo.pop())
        del self.entries[keep:]


@dataclass(slots=True)
class GroupOutcome(Generic[EntryT, AnswerT]):
    """What an event did: records, which the log may still refuse, and timers to set if it accepts them."""

    draft: Draft[EntryT]
    timers: list[TimerInstruction] = field(default_factory=list)
    answer: AnswerT | None = None
