"""The trace of a run: what happened, in order, as one hash and as its last lines.

What lives here: the proof that a run was repeated exactly, and what a failing seed shows. Whoever records must not let anything in that
differs between runs: no addresses, no `id()`, no order of sets.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Final

LINES_MAX: Final = 200
UNHASHED_LINES_MAX: Final = 256
"""Hashed at once: a call for each line costs as much as making it."""


class Trace:
    """Events of one simulation."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=12)
        self._unhashed: list[str] = []
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self.events = 0
        self._ended = False

    def end(self) -> None:
        """The world ends: what dead coroutines do while they are unwound comes in no order, and belongs to no run."""
        self._ended = True

    def record(self, now: float, who: str, what: str, *details: object) -> None:
        """Add an event; details are numbers and strings."""
        if self._ended:
            return
        line = f"{now:.9f} {who} {what} {' '.join(map(str, details))}"
        self._unhashed.append(line)
        self.events += 1
        if len(self._unhashed) >= UNHASHED_LINES_MAX:
            self._settle()

    @property
    def digest(self) -> str:
        """Hash of everything recorded so far."""
        self._settle()
        return self._hash.hexdigest()

    def tail(self) -> list[str]:
        """The last events, oldest first."""
        self._settle()
        return list(self._lines)

    def _settle(self) -> None:
        self._hash.update("".join(f"{line}\n" for line in self._unhashed).encode())
        self._lines.extend(self._unhashed)
        self._unhashed.clear()
