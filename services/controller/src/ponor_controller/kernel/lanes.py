"""Queues of operations that wait for execution, ordered by urgency.

Operations of one node keep their order, as the session protocol requires. The node whose first operation is
the most urgent is served next; nodes with equally urgent first operations take turns. The limit of operations
in flight bounds the queues.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ponor_runtime.identity import NodeId

from ponor_controller.kernel.operation import Lane, PendingOperation


class Lanes:
    """Operations that wait for execution."""

    def __init__(self) -> None:
        self._waiting: dict[NodeId, deque[PendingOperation]] = {}
        self._heads: dict[Lane, deque[NodeId]] = {lane: deque() for lane in Lane}
        self._filled = asyncio.Event()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, pending: PendingOperation) -> None:
        """Append an operation to the queue of its node."""
        node_id = pending.caller.node_id
        self._count += 1
        queue = self._waiting.get(node_id)
        if queue is not None:
            queue.append(pending)
            return
        self._waiting[node_id] = deque([pending])
        self._heads[pending.lane].append(node_id)
        self._filled.set()

    def take(self) -> PendingOperation | None:
        """Remove and return the next operation; None if none waits."""
        for lane, heads in self._heads.items():
            if heads:
                return self._take(lane, heads)
        self._filled.clear()
        return None

    def empty(self) -> list[PendingOperation]:
        """Remove and return all operations; called when leadership ended."""
        taken: list[PendingOperation] = []
        while (pending := self.take()) is not None:
            taken.append(pending)
        return taken

    async def filled(self) -> None:
        """Return as soon as an operation is queued."""
        await self._filled.wait()

    def _take(self, lane: Lane, heads: deque[NodeId]) -> PendingOperation:
        node_id = heads[0]
        queue = self._waiting[node_id]
        pending = queue.popleft()
        self._count -= 1
        if not queue:
            heads.popleft()
            del self._waiting[node_id]
        elif (following := queue[0].lane) is not lane or len(heads) > 1:
            heads.popleft()
            self._heads[following].append(node_id)
        return pending
