"""The trace of a run: all events in order, as one hash, and the last lines.

Equal hashes prove that a run was repeated exactly. Recorded details must not differ between runs:
no memory addresses, no `id()`, no iteration order of sets.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Final

LINES_MAX: Final = 200
UNHASHED_LINES_MAX: Final = 256
"""Lines are hashed in batches of this size: one hash call per line would cost as much as building the line.
"""


class Trace:
    """Events of one simulation."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=12)
        self._unhashed: list[str] = []
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self.events = 0
        self._ended = False

    def end(self) -> None:
        """Stop recording: abandoned coroutines are closed in no fixed order."""
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
        """The hash of everything recorded so far."""
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
