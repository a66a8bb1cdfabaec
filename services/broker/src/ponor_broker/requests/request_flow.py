"""State that all connections of a listener share: byte budgets of requests, time of the last read,
and the turns in which answers are sent and queued requests start.

Answers are batched: one group commit of the write-ahead log completes many requests in one
event-loop turn, and each connection then writes all its answers at once.

Queued requests start in turns. A client that sends one request at a time is served immediately. Requests that
a client sent ahead wait in its queue. All queues together start a bounded number of requests per event-loop
turn, in round-robin order. Measured with 750 clients that each had sent 500 requests without reading: without
turns, every request of a new client waited for one request of each other client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from ponor_kafka.api import ApiKey
from ponor_runtime.budgets import ByteBudget
from ponor_runtime.clock import Clock


class AnswerBacklog:
    """Bytes of answers that clients have not read, summed over all connections of a listener.

    The listener updates the count. Answers in a socket's buffer keep cached record batches in memory. At the
    bound, Fetch returns at most one batch per answer.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_waiting = 0

    @property
    def is_full(self) -> bool:
        """Whether answers must be small."""
        return self.bytes_waiting >= self._bytes_max

    def replace(self, before_bytes: int, after_bytes: int) -> None:
        """Update one connection's share."""
        self.bytes_waiting += after_bytes - before_bytes
        assert self.bytes_waiting >= 0


Flush: TypeAlias = Callable[[], None]
StartQueued: TypeAlias = Callable[[int], int]
"""Starts at most the given number of requests of one connection's queue; returns how many it started."""

QUEUED_STARTS_PER_TURN_MAX: Final = 32
QUEUED_STARTS_TURN_NS_MAX: Final = 4_000_000
"""A turn ends at this bound or at the bound on the number, whichever comes first. This bound matters for
requests that take a long time to start."""


STARTS_PER_CHECK: Final = 4
"""Requests of one connection that start between two readings of the clock."""
READ_STARTS_NS_MAX: Final = 50_000_000
"""About the longest time for starting requests immediately, without a queue. It bounds each read, and all
slow reads of an event-loop turn together; further requests are queued. A read has up to 64 requests, and
each may decompress for 100 ms."""
SLOW_READ_NS: Final = 1_000_000
"""A read is slow if starting its requests takes at least this long. Faster reads do not count towards the
bound of a turn: under load, a turn may have thousands of them."""
LARGE_CONTROL_BYTES: Final = 8 << 10
"""Larger requests may use half of the in-flight bytes: a quarter for each of two kinds (`QUICK` and others).
The smaller requests of 10,000 connections fit into the other half. Produce is exempt: it waits only for the
write-ahead log."""
PRODUCE: Final = int(ApiKey.PRODUCE).to_bytes(2, "big")
QUICK: Final = frozenset(
    int(key).to_bytes(2, "big")
    for key in (
        ApiKey.FETCH,
        ApiKey.METADATA,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.TXN_OFFSET_COMMIT,
    )
)
"""APIs whose large requests take seconds at most. A large Fetch waits briefly; a large JoinGroup or SyncGroup
frees its frame before it waits (`RequestContext.free`). A large request of another API may take as long as
its client chooses: CreateTopics waits for the controller, topic by topic, and ListOffsets may read objects
for each partition.
"""


class RequestFlow:
    """Shared budgets and turns of one listener.

    Attributes:
        in_flight: charged with a request's bytes from its start until its answer is sent.
        is_turn_over: whether requests that are read now must wait for a later turn.
        large_quick: additional budget of large requests of the APIs in `QUICK`.
        large_slow: additional budget of other large requests, except Produce.
        waiting: charged with requests that have arrived and are queued.
        read_ns: monotonic time of the last read, used as start time of every request in it.
    """

    __slots__ = (
        "_clock",
        "_due",
        "_slow_ns",
        "_turn_end_ns",
        "_turns",
        "in_flight",
        "is_turn_over",
        "large_quick",
        "large_slow",
        "read_ns",
        "waiting",
    )

    def __init__(self, clock: Clock, *, in_flight: ByteBudget, waiting: ByteBudget) -> None:
        self._clock = clock
        self.in_flight = in_flight
        self.large_quick, self.large_slow = (
            ByteBudget(
                f"in-flight bytes of large {kind} requests",
                max(in_flight.bytes_max // 4, 1),
                waiters_max=in_flight.waiters_max,
            )
            for kind in ("quick", "slow")
        )
        self.waiting = waiting
        self.read_ns = self._turn_end_ns = clock.monotonic_ns()
        self.is_turn_over = False
        self._slow_ns = 0
        self._due: list[Flush] = []
        self._turns: deque[StartQueued] = deque()

    def note_read(self) -> None:
        """Record the time of a read: one clock call for all requests in it."""
        self.read_ns = self._clock.monotonic_ns()
        self._turn_end_ns = self.read_ns + READ_STARTS_NS_MAX - self._slow_ns

    def large_budget(self, frame: bytearray) -> ByteBudget | None:
        """Return the budget that a request shares with other large requests of its kind; None for a small
        request or a Produce.
        """
        if len(frame) <= LARGE_CONTROL_BYTES or frame.startswith(PRODUCE):
            return None
        return self.large_quick if bytes(frame[:2]) in QUICK else self.large_slow

    def try_start(self, size_bytes: int, large: ByteBudget | None) -> bool:
        """Charge a request's bytes if there is room. `large` is the result of `large_budget`."""
        if large is not None and not large.try_acquire(size_bytes):
            return False
        if self.in_flight.try_acquire(size_bytes):
            return True
        if large is not None:
            large.release(size_bytes)
        return False

    async def wait_to_start(self, size_bytes: int, large: ByteBudget | None) -> None:
        """Wait for room, after the requests that already wait, and charge a request's bytes.

        Raises:
            BudgetExceededError: too many requests wait.
        """
        if large is None:
            await self.in_flight.acquire(size_bytes)
            return
        await large.acquire(size_bytes)
        try:
            await self.in_flight.acquire(size_bytes)
        except BaseException:
            large.release(size_bytes)
            raise

    def ended(self, size_bytes: int, large: ByteBudget | None) -> None:
        """Release the bytes of answered requests."""
        self.in_flight.release(size_bytes)
        if large is not None:
            large.release(size_bytes)

    def is_turn_long(self) -> bool:
        """Return whether starting requests has used up the time of this turn."""
        return self._clock.monotonic_ns() >= self._turn_end_ns

    def end_read(self) -> None:
        """End a read. When the slow reads of a turn have taken `READ_STARTS_NS_MAX` together, later requests
        wait for the next turn.
        """
        took_ns = self._clock.monotonic_ns() - self.read_ns
        if took_ns < SLOW_READ_NS:
            return
        if not self._slow_ns:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._slow_ns += took_ns
        self.is_turn_over = self._slow_ns >= READ_STARTS_NS_MAX

    def _next_turn(self) -> None:
        self._slow_ns = 0
        self.is_turn_over = False

    def flush_later(self, flush: Flush) -> None:
        """Call `flush` at the end of this event-loop turn. The caller calls this at most once per turn."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._flush)
        self._due.append(flush)

    def _flush(self) -> None:
        due, self._due = self._due, []
        for flush in due:
            flush()

    def take_turn(self, start_queued: StartQueued) -> None:
        """Call `start_queued` in a later turn. Each connection may wait for at most one turn at a time."""
        if not self._turns:
            asyncio.get_running_loop().call_soon(self._give_turns)
        self._turns.append(start_queued)

    def _give_turns(self) -> None:
        left = QUEUED_STARTS_PER_TURN_MAX
        end_ns = self._turn_end_ns = self._clock.monotonic_ns() + QUEUED_STARTS_TURN_NS_MAX
        given = len(self._turns)  # a connection that is added in the meantime gets its turn in the next round
        while given and left > 0:
            given -= 1
            left -= self._turns.popleft()(left)
            if self._clock.monotonic_ns() >= end_ns:
                break
        if self._turns:
            asyncio.get_running_loop().call_soon(self._give_turns)
