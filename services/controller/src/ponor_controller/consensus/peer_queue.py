"""The bounded queue of messages to one peer.

Raft repeats lost messages, so a full queue drops the oldest messages and returns their number.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from ponor_raft.messages import Message

from ponor_controller.consensus.peer_frames import message_bytes

MESSAGES_MAX: Final = 4_096
BYTES_MAX: Final = 32 * 1024 * 1024
FRAME_TARGET_BYTES: Final = 1024 * 1024
"""Target size of a frame; a larger single message gets its own frame."""


class PeerQueue:
    """A FIFO queue, bounded by number and bytes."""

    def __init__(self) -> None:
        self._messages: deque[tuple[Message, int]] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()

    def put(self, message: Message) -> int:
        """Add a message; returns how many older ones were dropped."""
        size_bytes = message_bytes(message)
        self._messages.append((message, size_bytes))
        self._bytes += size_bytes
        self._filled.set()
        dropped = 0
        while len(self._messages) > MESSAGES_MAX or (self._bytes > BYTES_MAX and len(self._messages) > 1):
            _, dropped_bytes = self._messages.popleft()
            self._bytes -= dropped_bytes
            dropped += 1
        return dropped

    def clear(self) -> int:
        """Drop all messages; returns their number."""
        count = len(self._messages)
        self._messages.clear()
        self._bytes = 0
        return count

    def __bool__(self) -> bool:
        return bool(self._messages)

    def wake(self) -> None:
        """Make `filled` return even without a message."""
        self._filled.set()

    async def filled(self) -> None:
        """Wait for a message."""
        if not self._messages:
            self._filled.clear()
            await self._filled.wait()

    def take(self) -> list[Message]:
        """Remove and return the messages of one frame."""
        taken: list[Message] = []
        taken_bytes = 0
        while self._messages:
            message, size_bytes = self._messages[0]
            if taken and taken_bytes + size_bytes > FRAME_TARGET_BYTES:
                break
            self._messages.popleft()
            taken.append(message)
            taken_bytes += size_bytes
        self._bytes -= taken_bytes
        return taken
