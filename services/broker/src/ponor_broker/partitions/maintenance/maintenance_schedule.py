"""Schedule of maintenance: partitions that changed, and deadlines.

An idle partition costs one heap entry and no time.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from ponor_runtime.clock import Clock
from ponor_runtime.tasks import Wake

if TYPE_CHECKING:
    from ponor_broker.partitions.partition import Partition

NEVER_MS: Final = (1 << 63) - 1
LOOK_MS_MAX: Final = 60_000
"""Longest sleep before a deadline: deadlines use the wall clock, which may jump."""
_STALE_MIN: Final = 64


class MaintenanceSchedule:
    """At most one valid deadline per partition. It may be too early (maintenance then sets a later one), but
    never too late.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wake = Wake(clock)
        self._touched: dict[Partition, None] = {}
        self._deadlines: dict[Partition, int] = {}
        self._heap: list[tuple[int, int, Partition]] = []
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def touch(self, partition: Partition) -> None:
        """Note a change that maintenance must handle."""
        self._touched[partition] = None
        self._wake.set()

    def at(self, partition: Partition, deadline_ms: int) -> None:
        """Set a deadline. An earlier existing deadline stays in force."""
        known_ms = self._deadlines.get(partition, NEVER_MS)
        if deadline_ms >= known_ms:
            return
        self._deadlines[partition] = deadline_ms
        self._pushes += 1
        heapq.heappush(self._heap, (deadline_ms, self._pushes, partition))

    def forget(self, partition: Partition) -> None:
        """Remove a partition that no longer serves."""
        self._touched.pop(partition, None)
        if self._deadlines.pop(partition, None) is not None:
            stale = len(self._heap) - len(self._deadlines)
            if stale > len(self._deadlines) + _STALE_MIN:
                self._heap = [entry for entry in self._heap if self._is_live(entry)]
                heapq.heapify(self._heap)

    def take_due(self, now_ms: int) -> list[Partition]:
        """Remove and return partitions that changed, then those whose deadline has come."""
        due, self._touched = self._touched, {}
        while self._heap and self._heap[0][0] <= now_ms:
            entry = heapq.heappop(self._heap)
            if self._is_live(entry):
                del self._deadlines[entry[2]]
                due[entry[2]] = None
        return list(due)

    async def wait(self) -> None:
        """Wait until a partition changes or a deadline may have come."""
        if self._touched:
            return
        if not self._heap:
            await self._wake.wait(None)
            return
        left_ms = self._heap[0][0] - self._clock.wall_ms()
        if left_ms > 0:
            await self._wake.wait(min(left_ms, LOOK_MS_MAX) / 1000)

    def _is_live(self, entry: tuple[int, int, Partition]) -> bool:
        return self._deadlines.get(entry[2]) == entry[0]
