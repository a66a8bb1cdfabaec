"""Requests for partitions of which it is about to be known who serves them: they wait a moment instead of being refused.

What lives here: the waiting list of each partition, its bounds and its end. A client that is refused comes back after its back-off, having looked for
the leader; one that waited here is answered by the right broker as soon as there is one (measured by others: 20 to 110 ms of a client's pause
instead of 0.3 to 2 s).

Every request looks again when the partition has settled, or when its time is over, in the order of arrival. The first one whose time is over
takes all others of the partition along, and nobody waits for this partition any more until it has settled: otherwise a request could be refused
while one that was sent behind it is taken.

Requests that wait are called over several turns of the loop when there are many. A request that arrives meanwhile for the same partition waits behind them
(`holds_back`), so that it does not overtake them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from ponor_runtime.telemetry import Telemetry

from ponor_broker.partitions.identity import PartitionKey

LookAgain: TypeAlias = Callable[[], None]
"""Called once, in the loop's thread: the partition serves here, or elsewhere, or the time is over. It must not raise."""
REQUEST_BYTES: Final = 512
"""What a request costs beside its batch."""
CALLS_PER_TURN_MAX: Final = 128
CALLED_BYTES_PER_TURN_MAX: Final = 4 << 20
"""Requests, and bytes of requests, that look again in one turn of the loop; one request may exceed the bytes."""


class ParkedRequest:
    """A place in the list; whoever took it may leave before it is called."""

    __slots__ = ("look_again", "size_bytes")

    def __init__(self, look_again: LookAgain, size_bytes: int) -> None:
        self.look_again: LookAgain | None = look_again
        self.size_bytes = size_bytes

    def leave(self) -> None:
        """Do not call. The place is free when the partition has settled, in a moment."""
        self.look_again = None


class _Waiting:
    """Of one partition. It waits while there is a `timer`; without one its requests are called, and nobody may join until it `has_settled`."""

    __slots__ = ("has_settled", "requests", "timer")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.requests: deque[ParkedRequest] = deque()
        self.timer: asyncio.TimerHandle | None = timer
        self.has_settled = False


class TransitParking:
    """At most `bytes_max` bytes of requests, each for at most `ms_max`; 0 lets nobody wait."""

    def __init__(self, *, ms_max: int, bytes_max: int, telemetry: Telemetry) -> None:
        self._ms_max = ms_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: dict[PartitionKey, _Waiting] = {}
        self._called: dict[PartitionKey, None] = {}
        """Partitions whose requests are called now, in this order."""
        self._calls_left = CALLS_PER_TURN_MAX
        self._bytes_left = CALLED_BYTES_PER_TURN_MAX
        self._late_calls = self._late_bytes = 0
        """Requests that parked behind others which are called now. The next turn calls as many more, so that it catches up."""
        self._next_turn_is_due = False
        self._is_calling = False
        self._parked = telemetry.counter("ponor_transit_requests_total", result="parked")
        self._refused = telemetry.counter("ponor_transit_requests_total", result="refused")
        self._expired = telemetry.counter("ponor_transit_requests_total", result="expired")
        telemetry.gauge("ponor_transit_parked_bytes", lambda: self._bytes)

    @property
    def partitions(self) -> Iterable[PartitionKey]:
        """Those that have not settled since somebody waited for them."""
        return self._waiting.keys()

    @property
    def is_calling(self) -> bool:
        """Whether requests of any partition are called now, or in the next turns."""
        return bool(self._called)

    def holds_back(self, key: PartitionKey) -> bool:
        """Whether a request that did not wait yet has to park now, behind those of the partition that are called."""
        return key in self._called

    def park(self, key: PartitionKey, look_again: LookAgain, size_bytes: int = 0) -> ParkedRequest | None:
        """A place; None, and the request has to be refused, where there is no room or nobody waits for this partition any more."""
        size_bytes += REQUEST_BYTES
        waiting = self._waiting.get(key)
        is_given_up = waiting is not None and waiting.timer is None and not waiting.has_settled
        if is_given_up or self._ms_max == 0 or self._bytes + size_bytes > self._bytes_max:
            self._refused.add()
            return None
        if waiting is None:
            loop = asyncio.get_running_loop()
            waiting = _Waiting(loop.call_later(self._ms_max / 1000, self._expire, key))
            self._waiting[key] = waiting
        request = ParkedRequest(look_again, size_bytes)
        waiting.requests.append(request)
        self._bytes += size_bytes
        if waiting.has_settled:
            self._late_calls += 1
            self._late_bytes += size_bytes
        self._parked.add()
        return request

    def settled(self, key: PartitionKey) -> None:
        """It is known who serves the partition: all look again, and from now on may wait again."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.has_settled = True
            self._call(key, waiting)

    def settle_all(self) -> None:
        """End every wait: the broker stops, or may not answer any more."""
        for key in list(self._waiting):
            self.settled(key)

    def _expire(self, key: PartitionKey) -> None:
        waiting = self._waiting[key]
        self._expired.add(len(waiting.requests))
        self._call(key, waiting)

    def _call(self, key: PartitionKey, waiting: _Waiting) -> None:
        if waiting.timer is not None:
            waiting.timer.cancel()
            waiting.timer = None
        self._called[key] = None
        if not self._is_calling:
            self._call_some()

    def _call_some(self) -> None:
        self._is_calling = True
        try:
            while self._called and self._calls_left > 0 and self._bytes_left > 0:
                key = next(iter(self._called))
                waiting = self._waiting[key]
                if waiting.requests:
                    self._call_one(waiting.requests.popleft())
                    continue
                del self._called[key]
                if waiting.has_settled:
                    del self._waiting[key]
        finally:
            self._is_calling = False
        if not self._next_turn_is_due:
            self._next_turn_is_due = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _call_one(self, request: ParkedRequest) -> None:
        self._bytes -= request.size_bytes
        if request.look_again is not None:
            self._calls_left -= 1
            self._bytes_left -= request.size_bytes
            request.look_again()

    def _begin_turn(self) -> None:
        self._next_turn_is_due = False
        self._calls_left = CALLS_PER_TURN_MAX + self._late_calls
        self._bytes_left = CALLED_BYTES_PER_TURN_MAX + self._late_bytes
        self._late_calls = self._late_bytes = 0
        if self._called:
            self._call_some()
