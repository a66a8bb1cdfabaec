"""Requests that wait for a partition in transit instead of being refused.

A client whose request is refused retries after a back-off and a look-up of the leader; a parked request is
answered as soon as a broker leads the partition (measured elsewhere: a pause of 20 to 110 ms instead of 0.3
to 2 s).

Parked requests are retried in order of arrival, when the partition serves again, here or at another broker,
or when their time has passed. When the time of the first request has passed, all requests of the partition
are retried, and no more requests wait for it until it serves. Otherwise a request could be refused, and a
later one accepted.

Many parked requests are retried over several event-loop turns. A request that arrives in the meantime for the
same partition waits behind them (`holds_back`), so that it does not overtake them.

Requests without acknowledgement ("silent" ones) have a longer limit of their own: a refusal would lose their
records, and no answer on their connection waits for them. They are not idempotent, so the order in which they
are refused does not matter.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, TypeAlias

from ponor_runtime.telemetry import Telemetry

from ponor_broker.partitions.identity import PartitionKey

LookAgain: TypeAlias = Callable[[], None]
"""Called once, on the event-loop thread, when the partition serves, here or at another broker, or the time
has passed. Must not raise."""
SILENT_MS_MAX: Final = 5_000
"""Longest wait of requests without acknowledgement (or `park_ms_max`, if that is longer): as long
as CreateTopics waits for leaders."""
REQUEST_BYTES: Final = 512
"""Counted for a request in addition to its batch."""
CALLS_PER_TURN_MAX: Final = 128
CALLED_BYTES_PER_TURN_MAX: Final = 4 << 20
"""Requests, and bytes of requests, that are retried in one event-loop turn; one request may exceed
the bytes."""


class ParkedRequest:
    """A place in the queue; its owner may leave before it is called."""

    __slots__ = ("check_again", "number", "size_bytes")

    def __init__(self, check_again: LookAgain, size_bytes: int, number: int) -> None:
        self.check_again: LookAgain | None = check_again
        self.size_bytes = size_bytes
        self.number = number

    def leave(self) -> None:
        """Cancel the call. The place is freed when the partition serves again."""
        self.check_again = None


class _Waiting:
    """The queues of one partition: one for silent requests and one for all others.

    Each kind waits until its timer ends or the partition serves. Requests of a kind in `is_over`
    are called, and no more may join them until `has_settled`.
    """

    __slots__ = ("has_settled", "is_over", "requests", "timers")

    def __init__(self) -> None:
        self.requests: dict[bool, deque[ParkedRequest]] = {False: deque(), True: deque()}
        self.timers: dict[bool, asyncio.TimerHandle] = {}
        self.is_over: dict[bool, None] = {}
        self.has_settled = False

    def settle(self) -> None:
        """Call all requests, and stop the timers."""
        self.has_settled = True
        for timer in self.timers.values():
            timer.cancel()

    def next_due(self) -> ParkedRequest | None:
        """Remove and return the request to call next, in order of arrival."""
        kinds = self.requests if self.has_settled else self.is_over
        due = [self.requests[kind] for kind in kinds if self.requests[kind]]
        return min(due, key=lambda requests: requests[0].number).popleft() if due else None


class TransitParking:
    """The queues of all partitions: at most `bytes_max` bytes of requests, each for at most
    `ms_max`, silent ones for SILENT_MS_MAX; an `ms_max` of 0 disables waiting.
    """

    def __init__(self, *, ms_max: int, bytes_max: int, telemetry: Telemetry) -> None:
        self._ms_max = {False: ms_max, True: max(ms_max, SILENT_MS_MAX) if ms_max else 0}
        """By whether requests are silent."""
        self._numbers = count()
        self._bytes_max = bytes_max
        self._bytes = 0
        self._waiting: dict[PartitionKey, _Waiting] = {}
        self._called: dict[PartitionKey, None] = {}
        """Partitions whose requests are being called, in this order."""
        self._calls_left = CALLS_PER_TURN_MAX
        self._bytes_left = CALLED_BYTES_PER_TURN_MAX
        self._late_calls = self._late_bytes = 0
        """Requests, and their bytes, that were parked behind requests that are being called. The next turn's
        bounds rise by as much, so that the queue does not grow."""
        self._next_turn_is_due = False
        self._is_calling = False
        self._parked = telemetry.counter("ponor_transit_requests_total", result="parked")
        self._refused = telemetry.counter("ponor_transit_requests_total", result="refused")
        self._expired = telemetry.counter("ponor_transit_requests_total", result="expired")
        telemetry.gauge("ponor_transit_parked_bytes", lambda: self._bytes)

    @property
    def partitions(self) -> Iterable[PartitionKey]:
        """Partitions with queues."""
        return self._waiting.keys()

    @property
    def is_calling(self) -> bool:
        """Whether requests of any partition are being called, in this or the next turns."""
        return bool(self._called)

    def holds_back(self, key: PartitionKey) -> bool:
        """Return whether a new request must park, because the partition serves and earlier requests are being
        called.
        """
        return key in self._called and self._waiting[key].has_settled

    def park(
        self, key: PartitionKey, check_again: LookAgain, size_bytes: int = 0, *, is_silent: bool = False
    ) -> ParkedRequest | None:
        """Return a place; None if the request must be refused, because there is no room, or because requests
        of this kind no longer wait for this partition.

        Args:
            key: the partition.
            check_again: see `LookAgain`.
            size_bytes: of the waiting batch.
            is_silent: whether the request has no acknowledgement.
        """
        size_bytes += REQUEST_BYTES
        ms_max = self._ms_max[is_silent]
        waiting = self._waiting.get(key)
        is_given_up = waiting is not None and is_silent in waiting.is_over and not waiting.has_settled
        if is_given_up or ms_max == 0 or self._bytes + size_bytes > self._bytes_max:
            self._refused.add()
            return None
        if waiting is None:
            waiting = self._waiting[key] = _Waiting()
        if waiting.has_settled:
            self._late_calls += 1
            self._late_bytes += size_bytes
        elif is_silent not in waiting.timers:
            loop = asyncio.get_running_loop()
            waiting.timers[is_silent] = loop.call_later(ms_max / 1000, self._expire, key, is_silent)
        request = ParkedRequest(check_again, size_bytes, next(self._numbers))
        waiting.requests[is_silent].append(request)
        self._bytes += size_bytes
        self._parked.add()
        return request

    def settled(self, key: PartitionKey) -> None:
        """Retry all requests of a partition, because its leader is known now. New requests may wait again."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.settle()
            self._call(key)

    def took(self, size_bytes: int) -> None:
        """Subtract the decompressed bytes of a batch that is being retried from this turn's bound: the
        validation of a compressed batch of 2 KB may take 100 ms.
        """
        self._bytes_left -= size_bytes

    def settle_all(self) -> None:
        """End every wait, because the broker stops or must no longer answer."""
        for key in list(self._waiting):
            self.settled(key)

    def _expire(self, key: PartitionKey, is_silent: bool) -> None:
        waiting = self._waiting[key]
        waiting.is_over[is_silent] = None
        self._expired.add(len(waiting.requests[is_silent]))
        self._call(key)

    def _call(self, key: PartitionKey) -> None:
        self._called[key] = None
        if not self._is_calling:
            self._call_some()

    def _call_some(self) -> None:
        self._is_calling = True
        try:
            while self._called and self._calls_left > 0 and self._bytes_left > 0:
                key = next(iter(self._called))
                waiting = self._waiting[key]
                if (request := waiting.next_due()) is not None:
                    self._call_one(request)
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
        if request.check_again is not None:
            self._calls_left -= 1
            self._bytes_left -= request.size_bytes
            request.check_again()

    def _begin_turn(self) -> None:
        self._next_turn_is_due = False
        self._calls_left = CALLS_PER_TURN_MAX + self._late_calls
        self._bytes_left = CALLED_BYTES_PER_TURN_MAX + self._late_bytes
        self._late_calls = self._late_bytes = 0
        if self._called:
            self._call_some()
