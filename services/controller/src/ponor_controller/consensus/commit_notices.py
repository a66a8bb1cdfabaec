"""Commit indices for followers that are sent nothing else.

What lives here: the moment that such a notice waits for an append which carries the commit index anyway. Under load none is ever sent, and a leader that gets one
operation after the other spends half as many frames on each. A notice that is dropped, or comes late, is a message that the network lost or delayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from ponor_raft.membership import ReplicaId
from ponor_raft.messages import AppendRequest, Message

WAIT_SECONDS: Final = 0.004
"""How much later followers, and who subscribed there, hear of a commit when nothing follows it."""


class CommitNotices:
    """Passes messages on; appends without entries wait, one for each follower, and go when a later append goes."""

    def __init__(self, send: Callable[[Sequence[Message]], None]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[ReplicaId, Message] = {}
        self._timer: asyncio.TimerHandle | None = None

    def send(self, messages: Sequence[Message]) -> None:
        """Send each to whom it names."""
        at_once: list[Message] = []
        for message in messages:
            if not isinstance(message, AppendRequest):
                at_once.append(message)
            elif message.entries:
                self._waiting.pop(message.to, None)
                at_once.append(message)
            else:
                self._waiting[message.to] = message
        if at_once:
            self._send(at_once)
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_later(WAIT_SECONDS, self._flush)

    def close(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._timer = None
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._send(list(waiting.values()))
