"""Timeouts of Produce requests: Kafka's `timeout_ms`.

Requests become durable roughly in order of arrival, so each timeout value needs only a queue that is checked
from its front, and one timer serves all queues. With a timer per request, nearly all timers would be
cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from ponor_runtime.clock import Clock

TIMEOUT_MS_MIN: Final = 100
"""Kafka with one replica answers a timeout of 0 with success, because it waits for no follower; here every
append waits for a disk sync, so a very short timeout would always expire."""
TIMEOUT_BITS: Final = 7
"""Significant bits of a timeout. It is rounded up by less than 2 %, to bound the number of queues
when clients send a different timeout in every request."""
NOT_IN_TIME: Final = "the batch was appended but is not durable yet"
"""Message of REQUEST_TIMED_OUT."""
NS_PER_MS: Final = 1_000_000


class Expirable(Protocol):
    """A request that waits for durability."""

    received_ns: int

    @property
    def is_answered(self) -> bool:
        """Whether the request was answered and no longer needs a deadline."""
        ...

    def expire(self) -> None:
        """Answer with REQUEST_TIMED_OUT."""
        ...


class ProduceDeadlines:
    """Waiting requests, by timeout."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[int, deque[Expirable]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def add(self, request: Expirable, timeout_ms: int) -> None:
        """Expire the request if it is not answered about `timeout_ms` after it was received."""
        timeout_ms = _rounded_up(max(timeout_ms, TIMEOUT_MS_MIN))
        queue = self._waiting.get(timeout_ms)
        if queue is None:
            queue = self._waiting[timeout_ms] = deque()
        while queue and queue[0].is_answered:
            queue.popleft()
        queue.append(request)
        deadline_ns = request.received_ns + timeout_ms * NS_PER_MS
        if self._timer is None or deadline_ns < self._timer_ns:
            self._arm(deadline_ns)

    def _arm(self, deadline_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(deadline_ns - self._clock.monotonic_ns(), 0) / 1e9
        self._timer_ns = deadline_ns
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ns = self._clock.monotonic_ns()
        next_ns: int | None = None
        for timeout_ms, queue in list(self._waiting.items()):
            deadline_ns = _expire_front(queue, timeout_ms * NS_PER_MS, now_ns)
            if deadline_ns is None:
                del self._waiting[timeout_ms]
            elif next_ns is None or deadline_ns < next_ns:
                next_ns = deadline_ns
        if next_ns is not None:
            self._arm(next_ns)


def _rounded_up(timeout_ms: int) -> int:
    bits = max(timeout_ms.bit_length() - TIMEOUT_BITS, 0)
    return -(-timeout_ms >> bits) << bits


def _expire_front(queue: deque[Expirable], timeout_ns: int, now_ns: int) -> int | None:
    """Expire due requests; return the deadline of the first remaining one, or None."""
    while queue:
        request = queue[0]
        if not request.is_answered:
            deadline_ns = request.received_ns + timeout_ns
            if deadline_ns > now_ns:
                return deadline_ns
            request.expire()
        queue.popleft()
    return None
