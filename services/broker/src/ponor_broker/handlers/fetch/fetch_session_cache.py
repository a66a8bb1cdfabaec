"""Which fetch sessions are remembered: slots, bytes, and who has to leave for whom (KIP-227).

What lives here: Kafka's rules. A session that was not used for two minutes leaves for anybody; one that is older than two minutes leaves for a
session of more partitions, the smallest first; otherwise the newcomer gets no session and sends full requests, which is always legal. Beyond
Kafka's slots there is a bound on bytes, because a client chooses how many partitions and how long names it wants remembered. Sessions belong
to the broker, not to connections. Nobody is privileged as followers are in Kafka: there are none.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from ponor_broker.handlers.fetch.fetch_session import FetchSession

EVICTION_MS: Final = 120_000
"""Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS: how long a session may keep its place unused, or whatever its size."""
SESSION_IDS: Final = (1 << 31) - 1
_HEAP_SLACK: Final = 64


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of the cache; see `BrokerSettings`."""

    slots_max: int
    session_bytes_max: int
    bytes_max: int


class FetchSessionCache:
    """Sessions by id. All methods run in the loop's thread and never wait."""

    def __init__(
        self, limits: SessionLimits, *, clock: Clock, randomness: Randomness, telemetry: Telemetry
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._randomness = randomness
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first
        self._young: deque[FetchSession] = deque()  # by creation; may hold sessions that are gone
        self._old: list[
            tuple[int, int]
        ] = []  # heap of (partitions, id); may hold rows that are not true any more
        self._counted: dict[int, tuple[int, int]] = {}  # (partitions, bytes) of each session as counted below
        self._partitions = 0
        self._bytes = 0
        self._evicted = telemetry.counter("ponor_fetch_sessions_evicted_total")
        self._refused = telemetry.counter("ponor_fetch_sessions_refused_total")
        telemetry.gauge("ponor_fetch_sessions", lambda: len(self._sessions))
        telemetry.gauge("ponor_fetch_session_partitions", lambda: self._partitions)
        telemetry.gauge("ponor_fetch_session_bytes", lambda: self._bytes)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def held_bytes(self) -> int:
        """What all sessions cost."""
        return self._bytes

    def find(self, session_id: int) -> FetchSession | None:
        """A session that is remembered."""
        return self._sessions.get(session_id)

    def may_remember(self, session: FetchSession) -> bool:
        """Whether one session may be as large as this one."""
        return session.size_bytes <= self._limits.session_bytes_max

    def admit(self, session: FetchSession) -> bool:
        """Remember a new session under a new id, if there is a place for it or one that has to yield."""
        now_ms = self._now_ms()
        while not self._has_room(session):
            if not self._evict_for(len(session), now_ms):
                self._refused.add()
                return False
        session.session_id = self._free_id()
        session.created_ms = session.used_ms = now_ms
        self._sessions[session.session_id] = session
        self._young.append(session)
        self._count(session)
        self._drop_stale_rows()
        return True

    def used(self, session: FetchSession) -> bool:
        """A request used the session and may have changed its size; False: it has become too large and is forgotten."""
        session.used_ms = self._now_ms()
        self._sessions.move_to_end(session.session_id)
        before = self._counted[session.session_id]
        self._count(session)
        if session.size_bytes > self._limits.session_bytes_max or self._bytes > self._limits.bytes_max:
            self.remove(session)
            self._refused.add()
            return False
        if len(session) != before[0] and self._is_old(session, session.used_ms):
            heapq.heappush(self._old, (len(session), session.session_id))
            self._drop_stale_rows()
        return True

    def remove(self, session: FetchSession) -> None:
        """Forget a session; unknown ones are forgotten already."""
        if self._sessions.get(session.session_id) is not session:
            return
        del self._sessions[session.session_id]
        partitions, size_bytes = self._counted.pop(session.session_id)
        self._partitions -= partitions
        self._bytes -= size_bytes
        session.close()

    def _has_room(self, session: FetchSession) -> bool:
        limits = self._limits
        return len(self._sessions) < limits.slots_max and self._bytes + session.size_bytes <= limits.bytes_max

    def _evict_for(self, partitions: int, now_ms: int) -> bool:
        if not self._sessions:
            return False
        stalest = next(iter(self._sessions.values()))
        if now_ms - stalest.used_ms > EVICTION_MS:
            self._evict(stalest)
            return True
        self._let_age(now_ms)
        while self._old:
            size, session_id = self._old[0]
            session = self._sessions.get(session_id)
            if session is None or len(session) != size:
                heapq.heappop(self._old)
                continue
            if size >= partitions:
                return False
            self._evict(session)
            return True
        return False

    def _evict(self, session: FetchSession) -> None:
        self.remove(session)
        self._evicted.add()

    def _let_age(self, now_ms: int) -> None:
        while self._young and self._is_old(self._young[0], now_ms):
            session = self._young.popleft()
            if self._sessions.get(session.session_id) is session:
                heapq.heappush(self._old, (len(session), session.session_id))

    @staticmethod
    def _is_old(session: FetchSession, now_ms: int) -> bool:
        return now_ms - session.created_ms > EVICTION_MS

    def _drop_stale_rows(self) -> None:
        """Keep the aging structures as large as the cache, whatever comes and goes."""
        bound = 2 * len(self._sessions) + _HEAP_SLACK
        if len(self._old) > bound:
            self._old = [row for row in dict.fromkeys(self._old) if self._is_true(row)]
            heapq.heapify(self._old)
        if len(self._young) > bound:
            self._young = deque(one for one in self._young if self._sessions.get(one.session_id) is one)

    def _is_true(self, row: tuple[int, int]) -> bool:
        session = self._sessions.get(row[1])
        return session is not None and len(session) == row[0]

    def _count(self, session: FetchSession) -> None:
        partitions, size_bytes = self._counted.get(session.session_id, (0, 0))
        self._partitions += len(session) - partitions
        self._bytes += session.size_bytes - size_bytes
        self._counted[session.session_id] = (len(session), session.size_bytes)

    def _free_id(self) -> int:
        while True:
            session_id = 1 + self._randomness.below(SESSION_IDS)
            if session_id not in self._sessions:
                return session_id

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000
