"""Requests for partitions of which it is about to be known who serves them: they wait a moment instead of being refused.

What lives here: the waiting list of each partition, its bounds and its end. A client that is refused comes back after its back-off, having looked for
the leader; one that waited here is answered by the right broker as soon as there is one (measured by others: 20 to 110 ms of a client's pause
instead of 0.3 to 2 s).

Every request looks again when the partition has settled, or when its time is over, in the order of arrival. The first one whose time is over
takes all others of the partition along, and nobody waits for this partition any more until it has settled: otherwise a request could be refused
while one that was sent behind it is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from ponor_runtime.telemetry import Telemetry

from ponor_broker.partitions.identity import PartitionKey

LookAgain: TypeAlias = Callable[[], None]
"""Called once, in the loop's thread: the partition serves here, or elsewhere, or the time is over. It must not raise."""
REQUEST_BYTES: Final = 512
"""What a request costs beside its batch."""


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
    """Of one partition. `timer` is None once nobody may wait any more."""

    __slots__ = ("requests", "timer")

    def __init__(self, timer: asyncio.TimerHandle) -> None:
        self.requests: list[ParkedRequest] = []
        self.timer: asyncio.TimerHandle | None = timer


class TransitParking:
    """At most `bytes_max` bytes of requests, each for at most `ms_max`; 0 lets nobody wait."""

    def __init__(self, *, ms_max: int, bytes_max: int, telemetry: Telemetry) -> None:
        self._ms_max = ms_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: dict[PartitionKey, _Waiting] = {}
        self._parked = telemetry.counter("ponor_transit_requests_total", result="parked")
        self._refused = telemetry.counter("ponor_transit_requests_total", result="refused")
        self._expired = telemetry.counter("ponor_transit_requests_total", result="expired")
        telemetry.gauge("ponor_transit_parked_bytes", lambda: self._bytes)

    @property
    def partitions(self) -> Iterable[PartitionKey]:
        """Those that have not settled since somebody waited for them."""
        return self._waiting.keys()

    def park(self, key: PartitionKey, look_again: LookAgain, size_bytes: int = 0) -> ParkedRequest | None:
        """A place; None, and the request has to be refused, where there is no room or nobody waits for this partition any more."""
        size_bytes += REQUEST_BYTES
        waiting = self._waiting.get(key)
        is_given_up = waiting is not None and waiting.timer is None
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
        self._parked.add()
        return request

    def settled(self, key: PartitionKey) -> None:
        """It is known who serves the partition: all look again, and from now on may wait again."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            self._call(waiting)

    def settle_all(self) -> None:
        """End every wait: the broker stops, or may not answer any more."""
        for key in list(self._waiting):
            self.settled(key)

    def _expire(self, key: PartitionKey) -> None:
        waiting = self._waiting[key]
        waiting.timer = None
        self._expired.add(len(waiting.requests))
        self._call(waiting)

    def _call(self, waiting: _Waiting) -> None:
        if waiting.timer is not None:
            waiting.timer.cancel()
        requests, waiting.requests = waiting.requests, []
        self._bytes -= sum(request.size_bytes for request in requests)
        for request in requests:
            if request.look_again is not None:
                request.look_again()
