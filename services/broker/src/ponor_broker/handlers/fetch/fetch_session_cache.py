"""Cache of fetch sessions: slots, bytes and eviction (KIP-227).

Implements Kafka's rules. Any new session can evict a session that was not used for two minutes. A new session
can also evict a session older than two minutes that has fewer partitions, the smallest first. Otherwise the
new request gets no session, and its client sends full requests. In addition to Kafka's slots, there is a
bound on bytes, because a client chooses the number of partitions and the length of their names. Sessions
belong to the broker, not to connections. There are no followers, so no session is privileged.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from typing import Final

from ponor_runtime.clock import Clock
from ponor_runtime.randomness import Randomness
from ponor_runtime.telemetry import Telemetry

from ponor_broker.handlers.fetch.fetch_session import FetchSession
from ponor_broker.settings import BrokerSettings

EVICTION_MS: Final = 120_000
"""Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS: minimum idle time or age before eviction."""
SESSION_IDS: Final = (1 << 31) - 1
_HEAP_SLACK: Final = 64


class FetchSessionCache:
    """Sessions by id. All methods run on the event-loop thread and never wait."""

    def __init__(
        self, settings: BrokerSettings, *, clock: Clock, randomness: Randomness, telemetry: Telemetry
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._randomness = randomness
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first
        self._young: deque[FetchSession] = deque()  # by creation; may contain removed sessions
        self._old: list[tuple[int, int]] = []  # heap of (partitions, id); may contain outdated rows
        # (partitions, bytes) with which each session is counted in the sums below
        self._counted: dict[int, tuple[int, int]] = {}
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
        """Memory of all sessions."""
        return self._bytes

    def find(self, session_id: int) -> FetchSession | None:
        """Return a cached session."""
        return self._sessions.get(session_id)

    def may_remember(self, session: FetchSession) -> bool:
        """Return whether the session is small enough for the cache."""
        return session.size_bytes <= self._settings.fetch_session_bytes_max

    def admit(self, session: FetchSession) -> bool:
        """Add a session under a new id, if there is room or a session can be evicted; return
        whether it was added.
        """
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
        """Note the use of a session, whose size may have changed; return False if it became too
        large and was removed.
        """
        session.used_ms = self._now_ms()
        self._sessions.move_to_end(session.session_id)
        before = self._counted[session.session_id]
        self._count(session)
        if (
            session.size_bytes > self._settings.fetch_session_bytes_max
            or self._bytes > self._settings.fetch_sessions_bytes_max
        ):
            self.remove(session)
            self._refused.add()
            return False
        if len(session) != before[0] and self._is_old(session, session.used_ms):
            heapq.heappush(self._old, (len(session), session.session_id))
            self._drop_stale_rows()
        return True

    def remove(self, session: FetchSession) -> None:
        """Remove a session. Idempotent."""
        if self._sessions.get(session.session_id) is not session:
            return
        del self._sessions[session.session_id]
        partitions, size_bytes = self._counted.pop(session.session_id)
        self._partitions -= partitions
        self._bytes -= size_bytes
        session.close()

    def _has_room(self, session: FetchSession) -> bool:
        settings = self._settings
        return (
            len(self._sessions) < settings.fetch_session_slots_max
            and self._bytes + session.size_bytes <= settings.fetch_sessions_bytes_max
        )

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
        """Remove outdated rows, so that the size of the cache bounds both structures."""
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
