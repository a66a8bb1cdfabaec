"""Remove from the Raft core's memory the entries that a snapshot contains, in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ponor_raft.node import RaftNode

from ponor_controller.consensus.record_log import RecordLog

COMPACTED_AT_ONCE: Final = 8_192
"""Entries removed in one turn of the event loop, in a millisecond or two. Two snapshots may be 100,000
entries apart."""


class WindowCompaction:
    """Compacts the entries that one Raft core holds in memory."""

    def __init__(self, node: RaftNode, log: RecordLog) -> None:
        self._node = node
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Callable[[], None]] = []
        self._closed = False

    def on_end(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a compaction has ended."""
        self._listeners.append(listener)

    def begin(self, snapshot_index: int) -> None:
        """Remove entries that a durable snapshot contains, except those kept for lagging followers."""
        self._compact(self._log.trailing_index(snapshot_index), snapshot_index)

    def close(self) -> None:
        """Stop."""
        self._closed = True

    def _compact(self, index: int, snapshot_index: int) -> None:
        """Remove entries up to `index`, or up to the snapshot if that leaves no room for new ones.

        Followers that lack removed entries get the snapshot instead.
        """
        if self._closed:
            return
        step = min(index, self._node.first_index - 1 + COMPACTED_AT_ONCE)
        self._node.compact(step)
        if step < index:
            self._loop.call_soon(self._compact, index, snapshot_index)
        elif index < snapshot_index and not self._node.has_room:
            self._loop.call_soon(self._compact, snapshot_index, snapshot_index)
        else:
            for listener in self._listeners:
                listener()
