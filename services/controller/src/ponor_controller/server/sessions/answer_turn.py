"""Answers of one turn of the loop: gathered, and sent before anything else that a commit brings about.

What lives here: who has answers to send. A commit that answers a thousand operations must not send a thousand frames; and whoever waits for one answer should not wait until the
controller has digested, retained and counted the batch behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class AnswerTurn:
    """Calls back everybody who was added: at `end`, or else at the end of this turn of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: list[Callable[[], None]] = []

    def add(self, flush: Callable[[], None]) -> None:
        """Call `flush` once. It must not raise."""
        if not self._due:
            self._loop.call_soon(self.end)
        self._due.append(flush)

    def end(self) -> None:
        """Now: nothing is added any more for a while."""
        due, self._due = self._due, []
        for flush in due:
            flush()
