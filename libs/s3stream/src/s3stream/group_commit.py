"""Group commit: what is appended while the log syncs becomes its next entry, and one callback. A log that gathers by itself gets an entry every turn.

Keeps the order of appends, and lets a caller mark a cut: an action that runs exactly between what was appended before it and what
comes after, once the former is durable.
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
"""Told once, in the loop's thread: None when the record is durable and cached, or the error. Must not raise."""

PendingAppend: TypeAlias = tuple[OpenStream, StreamRecord, int, OnDurable]
"""Stream, record, its encoded size in bytes, and whom to tell."""


class DurableSink(Protocol):
    """Receives the outcome of appends."""

    def on_durable(self, appends: list[PendingAppend], sequence: int, started_ns: int) -> None:
        """Report appends that are durable in a WAL entry whose first append came at `started_ns`."""
        ...

    def on_wal_failed(self, appends: list[PendingAppend], error: BaseException) -> None:
        """Report appends whose durability stays unknown, as does that of all later ones."""
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

    One entry gathers. It is handed over when the turn of the loop that began it ends; if others are in flight and the log does not gather by
    itself, when they are done; and whenever it is full.
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
        """What the log takes surely: what it had left when the gathering entry was begun, without what that holds; 0 while none gathers.
        Asking the log costs more than an append may."""
        self._unplaced: deque[_Entry] = deque()
        """Complete, and not in the log yet: its queue is full."""
        self._in_flight: deque[_Entry] = deque()

    @property
    def idle(self) -> bool:
        """Nothing is on its way."""
        return self._gathering is None and not self._unplaced and not self._in_flight

    def has_room(self, size_bytes: int) -> bool:
        """Whether the log takes so many more bytes without growing beyond its bounds."""
        if self._unplaced:
            return False
        return size_bytes <= (self._wal.room_bytes if self._gathering is None else self.room_bytes)

    def add(self, stream: OpenStream, record: StreamRecord, size_bytes: int, on_durable: OnDurable) -> None:
        """Take an append."""
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
        """Run `action` as soon as everything appended so far is durable and acknowledged, and before anything later is."""
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
            return  # handed over before the turn ended
        assert entry.appends, "an entry is begun by an append"
        assert entry.sequence == -1, "an entry is handed over once"
        self._gathering = None
        self.room_bytes = 0
        self._unplaced.append(entry)
        self._place()

    def _place(self) -> None:
        """Give the log what its queue takes, in order."""
        while self._unplaced:
            entry = self._unplaced[0]
            try:
                entry.sequence = self._wal.append(entry.buffers, self._on_done)
            except WalFullError:
                assert self._in_flight, "an empty queue takes any entry"
                return  # the next entry that is done makes room
            except StorageFailedError as error:
                # Reported in order, and not from within another caller's append, whose record filled this entry.
                entry.refused = error
                self._loop.call_soon(self._tell_refused)
            self._in_flight.append(self._unplaced.popleft())

    def _on_done(self, error: BaseException | None) -> None:
        """The oldest entry in flight is durable, or will never be known to be."""
        assert self._in_flight, "an answer of the log belongs to an entry"
        entry = self._in_flight.popleft()
        assert entry.refused is None
        assert entry.sequence >= 0
        self._place()
        if self._gathering is not None and not self._in_flight:
            self._hand_over(self._gathering)  # the disk first: it works while callbacks run
        if error is not None:
            self._sink.on_wal_failed(entry.appends, error)
        else:
            self._sink.on_durable(entry.appends, entry.sequence, entry.started_ns)
            for action in entry.cuts:
                action()
        if self._in_flight and self._in_flight[0].refused is not None:
            self._tell_refused()

    def _tell_refused(self) -> None:
        while self._in_flight and (error := self._in_flight[0].refused) is not None:
            self._sink.on_wal_failed(self._in_flight.popleft().appends, error)
        self._place()
        if self._gathering is not None and not self._in_flight:
            self._hand_over(self._gathering)


WAITING_MAX: Final = LINKS_MAX
"""Appends that one upload names; later ones of the same block are traced to their acknowledgement only."""


class AppendTraces:
    """Follows appends of one node from the log to the next seal."""

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
        """What to call instead of `on_durable`: the same, with a span around the wait."""
        started_ns = self._clock.monotonic_ns()

        def told(error: BaseException | None) -> None:
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

        return told

    def take(self) -> tuple[TraceContext, ...]:
        """The appends that became durable since the last seal that made objects, oldest first."""
        taken, self._durable = tuple(self._durable), []
        return taken

    def _keep(self, context: TraceContext) -> None:
        if len(self._durable) < WAITING_MAX and context not in self._durable:
            self._durable.append(context)
