"""Parts of worlds around a coordinator: a clock that the test advances, and partitions in memory."""

from __future__ import annotations

import asyncio
import heapq
import math
from dataclasses import dataclass

from ponor_kafka.record_batch import BatchView
from s3stream.errors import ReadTimeoutError


class VirtualClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000_000
        self.wall_ahead_ms = 0
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.now_ns // 1_000_000 + self.wall_ahead_ms

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        self._count += 1
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now_ns + math.ceil(seconds * 1e9), self._count, awake))
        await awake

    async def pass_ms(self, ms: int) -> None:
        until_ns = self.now_ns + ms * 1_000_000
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= until_ns:
            self.now_ns, _, awake = heapq.heappop(self._sleepers)
            if not awake.done():
                awake.set_result(None)
                await self.settle()
        self.now_ns = until_ns

    async def be_absent_ms(self, ms: int) -> None:
        """Pause the process: everything that was due in this time comes late, together."""
        self.now_ns += ms * 1_000_000
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= self.now_ns:
            _, _, awake = heapq.heappop(self._sleepers)
            if not awake.done():
                awake.set_result(None)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(30):
            await asyncio.sleep(0)


class MemoryPartition:
    """A partition of an internal topic whose disk can be slow or refuse; durable data survives a
    restart.
    """

    def __init__(self, index: int, log: list[bytearray]) -> None:
        self.index = index
        self.leader_epoch = 1
        self.log_start_offset = BatchView(memoryview(log[0])).base_offset if log else 0
        self.log = log
        self.is_slow = False
        self.refusal: Exception | None = None
        self.trim_refusal: Exception | None = None
        self.read_failures = 0
        self._under_way: list[tuple[bytearray, asyncio.Future[None]]] = []

    @property
    def log_end_offset(self) -> int:
        end = BatchView(memoryview(self.log[-1])).next_offset if self.log else self.log_start_offset
        return end + sum(BatchView(memoryview(batch)).record_count for batch, _ in self._under_way)

    async def advance_log_start(self, offset: int) -> None:
        if self.trim_refusal is not None:
            raise self.trim_refusal
        assert offset <= (BatchView(memoryview(self.log[-1])).next_offset if self.log else 0)
        self.log_start_offset = max(self.log_start_offset, offset)
        while self.log and BatchView(memoryview(self.log[0])).next_offset <= offset:
            del self.log[0]

    def append_batch(self, batch: bytearray) -> asyncio.Future[None]:
        if self.refusal is not None:
            raise self.refusal
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.append((batch, done))
        if not self.is_slow:
            asyncio.get_running_loop().call_soon(self.sync)
        return done

    def sync(self, *, told_backwards: bool = False, count: int | None = None) -> None:
        """Make all appends in flight durable, or the oldest `count`; callers may be notified in any order."""
        told = []
        ended, self._under_way = self._under_way[:count], self._under_way[len(self._under_way[:count]) :]
        for batch, done in ended:
            view = BatchView(memoryview(batch))
            end = BatchView(memoryview(self.log[-1])).next_offset if self.log else self.log_start_offset
            view.stamp(end, view.leader_epoch)
            self.log.append(batch)
            told.append(done)
        for done in reversed(told) if told_backwards else told:
            done.set_result(None)

    def fail(self, error: Exception) -> None:
        for _, done in self._under_way:
            done.set_exception(error)
        self._under_way.clear()

    async def read_batches(self, start_offset: int, max_bytes: int) -> list[memoryview]:
        await asyncio.sleep(0)
        if self.read_failures:
            self.read_failures -= 1
            raise ReadTimeoutError("the store is slow")
        found: list[memoryview] = []
        for batch in self.log:
            if BatchView(memoryview(batch)).next_offset > start_offset:
                if found and sum(map(len, found)) + len(batch) > max_bytes:
                    break
                found.append(memoryview(batch))
        return found


@dataclass
class Address:
    node_id: int
    host: str
    port: int
