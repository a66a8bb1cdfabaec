"""Group commit: appends that arrive while the log syncs form its next entry, so one sync makes all of them
durable.

The order of appends is preserved. A caller can also add a cut: an action that runs when all
earlier appends are durable, and before any later append is acknowledged. A log that itself combines
entries (`WriteAheadLog.gathers`) receives one entry per turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from ponor_runtime.clock import Clock
from ponor_runtime.disk import Buffer
from ponor_runtime.identity import StreamId
from ponor_runtime.tracing import LINKS_MAX, AttributeValue, Span, TraceContext

from s3stream.errors import StorageFailedError, WalFullError
from s3stream.open_stream import OpenStream
from s3stream.records import StreamRecord
from s3stream.wal import WriteAheadLog

OnDurable: TypeAlias = Callable[[BaseException | None], None]
"""Called once, in the loop's thread: with None when the record is durable and cached, or with the
error. Must not raise."""

PendingAppend: TypeAlias = tuple[OpenStream, StreamRecord, int, OnDurable]
"""Stream, record, encoded size in bytes, and callback."""


class DurableSink(Protocol):
    """Receives the outcome of appends."""

    def on_durable(self, appends: list[PendingAppend], sequence: int, started_ns: int) -> None:
        """Report durable appends of a WAL entry whose first append arrived at `started_ns`."""
        ...

    def on_wal_failed(self, appends: list[PendingAppend], error: BaseException) -> None:
        """Report that the log failed, so the outcome of these appends and of all later ones is unknown."""
        ...


class _Entry:
    __slots__ = ("appends", "buffers", "cuts", "refused", "sequence", "size_bytes", "started_ns")

    def __init__(self, started_ns: int) -> None:
        self.appends: list[PendingAppend] = []
        self.buffers: list[Buffer] = []
        self.cuts: list[Callable[[], None]] = []
        self.size_bytes = 0
        self.sequence = -1
        self.refused: StorageFailedError | None = None
        self.started_ns = started_ns


class GroupCommit:
    """Appends on their way to the log, in order.

    At most one entry gathers appends. If no entry is in flight, or if the log combines entries, it is
    submitted at the end of the loop turn in which it began. Otherwise it is submitted when no entry is
    in flight anymore, or when it is full.
    """

    def __init__(self, wal: WriteAheadLog, sink: DurableSink, clock: Clock, *, entry_bytes_max: int) -> None:
        assert entry_bytes_max > 0
        self._wal = wal
        self._wal_gathers = wal.gathers
        self._entry_bytes_max = entry_bytes_max
        self._sink = sink
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._gathering: _Entry | None = None
        self.room_bytes = 0
        """Bytes that the log certainly accepts: its room when the gathering entry began, minus the entry's
        content; 0 while no entry gathers. Cached, because a query of the log for every append is too slow."""
        self._unplaced: deque[_Entry] = deque()
        """Complete entries that are not in the log yet, because its queue is full."""
        self._in_flight: deque[_Entry] = deque()

    @property
    def idle(self) -> bool:
        """Whether no append is pending."""
        return self._gathering is None and not self._unplaced and not self._in_flight

    def has_room(self, size_bytes: int) -> bool:
        """Whether the log accepts this many more bytes within its bounds."""
        if self._unplaced:
            return False
        return size_bytes <= (self._wal.room_bytes if self._gathering is None else self.room_bytes)

    def add(self, stream: OpenStream, record: StreamRecord, size_bytes: int, on_durable: OnDurable) -> None:
        """Add an append."""
        entry = self._gathering
        if entry is not None and entry.size_bytes + size_bytes > self._entry_bytes_max:
            self._hand_over(entry)
            entry = None
        if entry is None:
            self.room_bytes = 0 if self._unplaced else self._wal.room_bytes
            entry = self._gathering = _Entry(self._clock.monotonic_ns())
            if self._wal_gathers or not self._in_flight:
                self._loop.call_soon(self._hand_over, entry)
        entry.appends.append((stream, record, size_bytes, on_durable))
        buffers = entry.buffers
        buffers.append(record.encode_header())
        buffers.append(record.payload)
        entry.size_bytes += size_bytes
        self.room_bytes -= size_bytes

    def cut(self, action: Callable[[], None]) -> None:
        """Run `action` as soon as everything appended so far is durable and acknowledged, and before any
        later append is acknowledged.
        """
        entry = self._gathering
        if entry is not None:
            entry.cuts.append(action)
            self._hand_over(entry)
            self._wal.hurry()
        elif self._unplaced or self._in_flight:
            (self._unplaced or self._in_flight)[-1].cuts.append(action)
            self._wal.hurry()
        else:
            action()

    def _hand_over(self, entry: _Entry) -> None:
        if entry is not self._gathering:
            return  # it was submitted before the turn ended
        assert entry.appends, "an entry without appends was handed over"
        assert entry.sequence == -1, "an entry was handed over twice"
        self._gathering = None
        self.room_bytes = 0
        self._unplaced.append(entry)
        self._place()

    def _place(self) -> None:
        """Submit entries in order, as far as the log's queue accepts them."""
        while self._unplaced:
            entry = self._unplaced[0]
            try:
                entry.sequence = self._wal.append(entry.buffers, self._on_done)
            except WalFullError:
                assert self._in_flight, "the log's queue is empty but refuses an entry"
                return  # retried when the next entry is durable
            except StorageFailedError as error:
                # Reported in a later turn: in order, and not within this call, which may be another caller's
                # append.
                entry.refused = error
                self._loop.call_soon(self._report_refused)
            self._in_flight.append(self._unplaced.popleft())

    def _on_done(self, error: BaseException | None) -> None:
        """Handle the outcome of the oldest entry in flight."""
        assert self._in_flight, "the log reported an outcome, but no entry is in flight"
        entry = self._in_flight.popleft()
        assert entry.refused is None
        assert entry.sequence >= 0
        self._place()
        if self._gathering is not None and not self._in_flight:
            self._hand_over(self._gathering)  # submit first, so that the disk works while callbacks run
        if error is not None:
            self._sink.on_wal_failed(entry.appends, error)
        else:
            self._sink.on_durable(entry.appends, entry.sequence, entry.started_ns)
            for action in entry.cuts:
                action()
        if self._in_flight and self._in_flight[0].refused is not None:
            self._report_refused()

    def _report_refused(self) -> None:
        while self._in_flight and (error := self._in_flight[0].refused) is not None:
            self._sink.on_wal_failed(self._in_flight.popleft().appends, error)
        self._place()
        if self._gathering is not None and not self._in_flight:
            self._hand_over(self._gathering)


WAITING_MAX: Final = LINKS_MAX
"""Appends linked to one upload. Later appends of the same block are traced only up to their
acknowledgement."""


class AppendTraces:
    """Traces the appends of one node from the log to the next seal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._durable: list[TraceContext] = []

    def follow(
        self,
        request: Span,
        stream_id: StreamId,
        size_bytes: int,
        on_durable: Callable[[BaseException | None], None],
    ) -> Callable[[BaseException | None], None]:
        """Wrap `on_durable` with a span that covers the wait."""
        started_ns = self._clock.monotonic_ns()

        def wrapped(error: BaseException | None) -> None:
            attributes: dict[str, AttributeValue] = {
                "ponor.stream.id": stream_id,
                "ponor.append.bytes": size_bytes,
            }
            if error is not None:
                attributes["error.type"] = type(error).__qualname__
            else:
                self._keep(request.context)
            request.step("ponor.wal.commit", started_ns, attributes)
            on_durable(error)

        return wrapped

    def take(self) -> tuple[TraceContext, ...]:
        """Return the traced appends that became durable since the last seal that created objects,
        oldest first.
        """
        taken, self._durable = tuple(self._durable), []
        return taken

    def _keep(self, context: TraceContext) -> None:
        if len(self._durable) < WAITING_MAX and context not in self._durable:
            self._durable.append(context)
