"""Parts of worlds around a coordinator: a clock that the test advances, and partitions in memory."""

from __future__ import annotations

import asyncio
import heapq
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from ponor_broker.coordination.ports import MarkerListener
from ponor_broker.coordination.transactional_append import BatchRefusedError, Verification
from ponor_kafka.control_records import ControlType, EndMarker, build_end_marker
from ponor_kafka.errors import ErrorCode
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


@dataclass
class MemoryTransactions:
    """The open and the ending transactions of a partition in memory: first offset by producer id."""

    opened: dict[int, int] = field(default_factory=dict)
    ending: dict[int, int] = field(default_factory=dict)
    """First offset by marker offset."""
    listener: MarkerListener | None = None

    @property
    def first_unstable_offset(self) -> int:
        return min([*self.opened.values(), *self.ending.values()], default=1 << 62)

    def begin_verification(
        self, producer_id: int, producer_epoch: int, *, generation: int
    ) -> Verification | None:
        if producer_id in self.opened:
            return None
        return Verification(producer_id, producer_epoch, begins_at_zero=generation > 1)

    def accept_markers(self, listener: MarkerListener | None) -> None:
        self.listener = listener

    def replay(self, batch: BatchView) -> None:
        if batch.is_control:
            self.opened.pop(batch.producer_id, None)
        elif batch.is_transactional:
            self.opened.setdefault(batch.producer_id, batch.base_offset)


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
        self.transactions = MemoryTransactions()
        for batch in log:
            self.transactions.replay(BatchView(memoryview(batch)))

    @property
    def log_end_offset(self) -> int:
        end = BatchView(memoryview(self.log[-1])).next_offset if self.log else self.log_start_offset
        return end + sum(BatchView(memoryview(batch)).record_count for batch, _ in self._under_way)

    async def advance_log_start(self, offset: int) -> None:
        if self.trim_refusal is not None:
            raise self.trim_refusal
        end = BatchView(memoryview(self.log[-1])).next_offset if self.log else self.log_start_offset
        assert offset <= end
        self.log_start_offset = max(self.log_start_offset, offset)
        while self.log and BatchView(memoryview(self.log[0])).next_offset <= offset:
            del self.log[0]

    def append_batch(self, batch: bytearray, proof: Verification | None = None) -> asyncio.Future[None]:
        if self.refusal is not None:
            raise self.refusal
        view = BatchView(memoryview(batch))
        if view.is_transactional and not view.is_control:
            if view.producer_id not in self.transactions.opened and proof is None:
                raise BatchRefusedError(ErrorCode.INVALID_TXN_STATE, "no open transaction")
            self.transactions.opened.setdefault(view.producer_id, self.log_end_offset)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.append((batch, done))
        if not self.is_slow:
            asyncio.get_running_loop().call_soon(self.sync)
        return done

    def append_marker(self, producer_id: int, *, commits: bool) -> asyncio.Future[None]:
        """End a transaction as its coordinator does; RuntimeError while markers are refused."""
        listener = self.transactions.listener
        if listener is None:
            raise RuntimeError("the groups are not loaded")
        kind = ControlType.COMMIT if commits else ControlType.ABORT
        offset = self.log_end_offset
        done = self.append_batch(build_end_marker(producer_id, 0, EndMarker(kind, 1), 5))
        first_offset = self.transactions.opened.pop(producer_id, None)
        if first_offset is not None:
            self.transactions.ending[offset] = first_offset
        listener(producer_id, commits, done)
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
            self.transactions.ending.pop(end, None)
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


class Address(NamedTuple):
    node_id: int
    host: str
    port: int
